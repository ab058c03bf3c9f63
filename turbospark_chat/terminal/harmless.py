"""Text from elsewhere, a model's above all, made unable to drive the terminal it is shown on."""

import re

# C0 and C1 controls but newline and tab, and what embeds, overrides or isolates a direction of writing.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Return text in which controls are U+FFFD; carriage returns go, since most belong to the end of a line."""
    return _UNSAFE.sub("\ufffd", text.replace("\r", ""))
