"""What a command that lists prints: a table for people, or an object a line for programs."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from turbospark_chat.terminal.harmless import harmless, json_line

_MINUTES: Final = "%Y-%m-%d %H:%M"
_TIMES: Final = ("created", "used", "time")


def print_rows(rows: Sequence[tuple[str, ...]], *, otherwise: str) -> int:
    """Print a table, or, where it would be empty, why on stderr."""
    from turbospark_chat.terminal.listing import print_table

    if rows:
        print_table(rows, is_cut=True)
    else:
        print(harmless(otherwise), file=sys.stderr)
    return 0


def print_objects(values: Sequence[Any]) -> int:
    """Print dataclasses, an object a line; times are of this place, with its difference from UTC."""
    for value in values:
        times = {
            name: datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
            for name in _TIMES
            if (seconds := getattr(value, name, None)) is not None
        }
        print(json_line({**asdict(value), **times}))
    return 0


def local_minute(seconds: float) -> str:
    """Return a time, given in seconds since the epoch, as it is here."""
    return datetime.fromtimestamp(seconds).strftime(_MINUTES)
