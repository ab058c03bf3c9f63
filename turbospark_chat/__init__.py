"""A terminal chat for local language models that never computes the same position twice."""

__version__ = "0.1.0"
