"""The lines typed before, kept in a file of JSON lines: one entry a line, whatever it contains.

Two programs may append at once: each entry is one write at the file's end. Nothing readable is ever lost: a damaged
line is passed over and reported, a file that cannot be read or written is left alone and history lives in memory.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import History

MOST_ENTRIES_LOADED = 5000


class JsonLinesHistory(History):
    """A prompt_toolkit history over such a file. `on_problem` gets one line for whatever went wrong."""

    def __init__(self, path: Path, *, on_problem: Callable[[str], None]) -> None:
        super().__init__()
        self._path = path
        self._on_problem = on_problem

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first, as prompt_toolkit wants them."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._on_problem(
                f"{self._path}: cannot read the input history: {error.strerror}; it is kept as it is"
            )
            return []
        entries: list[str] = []
        damaged: list[int] = []
        for number, line in enumerate(raw.split(b"\n"), start=1):
            if not line.strip():
                continue
            entry = _entry(line)
            if entry is None:
                damaged.append(number)
            else:
                entries.append(entry)
        if damaged:
            self._on_problem(
                f"{self._path}: line {damaged[0]} is damaged and was passed over ({len(damaged)} in all)"
            )
        return entries[: -MOST_ENTRIES_LOADED - 1 : -1]

    def store_string(self, string: str) -> None:
        """Append an entry."""
        line = json.dumps({"input": string}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _append(self._path, line)
        except OSError as error:
            self._on_problem(f"{self._path}: cannot write the input history: {error.strerror}")


def _entry(line: bytes) -> str | None:
    try:
        value = json.loads(line)["input"]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _append(path: Path, line: bytes) -> None:
    """Add a whole line at the end, after a newline where the last one lacks it; a failed write leaves no part."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(28, "the disk is full")
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
