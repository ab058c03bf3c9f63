"""The arithmetic of `layers`, compiled by numba: what a kernel is, the kernels themselves, and how they are compiled.

Nothing here is imported by a process that finds its kernels compiled already.
"""
