"""Linux's one-value and table files under /proc and /sys, read without trust.

What is missing, unreadable or not of the expected form reads as empty or None, never as an error. Knows the
form of the files, not the meaning of any.
"""

import os
import re
from pathlib import Path

_INTEGER = re.compile(r"-?\d{1,20}")
_TABLE_ROW = re.compile(r"^(\S+?):?[ \t]+(\d{1,20})(?=\s|$)", re.MULTILINE)


def read_text(path: Path) -> str:
    """Return the file's text, empty where it cannot be read; bytes that are not UTF-8 survive in a path."""
    try:
        return os.fsdecode(path.read_bytes())
    except (OSError, ValueError):  # a ValueError is a NUL inside a path that another file named
        return ""


def read_int(path: Path) -> int | None:
    """Return the file's one integer, or None: `42` is 42, `max` is None."""
    text = read_text(path).strip()
    return int(text) if _INTEGER.fullmatch(text) else None


def read_table(path: Path) -> dict[str, int]:
    """Return the rows that are a name and a count: `MemTotal: 42 kB` and `inactive_file 42` alike."""
    return {name: int(count) for name, count in _TABLE_ROW.findall(read_text(path))}
