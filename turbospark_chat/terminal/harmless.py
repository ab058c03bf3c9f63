"""Text from elsewhere, a model's above all, made unable to drive the terminal it is shown on."""

import json
import re

# C0 and C1 controls but newline and tab, and what embeds, overrides or isolates a direction of writing.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What of these JSON allows in a string, what some readers end a line at, and what UTF-8 lacks.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Return text in which controls are U+FFFD; carriage returns go, since most belong to the end of a line."""
    return _UNSAFE.sub("\ufffd", text.replace("\r", ""))


def json_line(value: object, *, is_ascii: bool = False) -> str:
    """Return a value as JSON in one line, in which whatever may do harm is escaped, so that nothing is lost."""
    line = json.dumps(value, ensure_ascii=is_ascii)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
