"""The lines typed before, kept in a file of JSON lines: one entry a line, whatever it contains.

Two programs may append at once: each entry is one write at the file's end, under a lock. Nothing readable is ever
lost: a damaged line is passed over and reported, a file that cannot be read or written is left alone and history
lives in memory.
"""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import History

MOST_ENTRIES_LOADED = 5000


class JsonLinesHistory(History):
    """A prompt_toolkit history over such a file. `on_problem` gets one line for whatever went wrong.

    Where nothing `is_kept`, entries of earlier programs are offered, and those of this one last as long as it.
    """

    def __init__(self, path: Path, *, on_problem: Callable[[str], None], is_kept: bool = True) -> None:
        super().__init__()
        self._path, self._is_kept = path, is_kept
        self._on_problem = on_problem
        self._reported = ""

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first, as prompt_toolkit wants them."""
        try:
            _refuse_devices(self._path)
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._report(f"cannot read the input history: {error.strerror}; it is kept as it is")
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
            self._report(f"line {damaged[0]} is damaged and was passed over ({len(damaged)} in all)")
        return entries[: -MOST_ENTRIES_LOADED - 1 : -1]

    def store_string(self, string: str) -> None:
        """Append an entry."""
        if not self._is_kept:
            return
        line = json.dumps({"input": string}, ensure_ascii=False)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_devices(self._path)
            # What UTF-8 cannot hold, lone surrogates, is written as backslashes: just as JSON escapes it.
            _append(self._path, line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            self._report(f"cannot write the input history: {error.strerror}; it lasts until you leave")

    def _report(self, problem: str) -> None:
        """Say it once: a full disk would say it again for every entry."""
        if problem != self._reported:
            self._reported = problem
            self._on_problem(f"{self._path}: {problem}")


def _refuse_devices(path: Path) -> None:
    """Raise OSError for what is there and no regular file: reading a FIFO or a device may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")


def _entry(line: bytes) -> str | None:
    try:
        value = json.loads(line)["input"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _append(path: Path, line: bytes) -> None:
    """Add a whole line at the end, after a newline where the last one lacks it; a failed write leaves no part."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # released by closing
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
