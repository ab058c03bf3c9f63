"""Files of what a model has computed, kept within a budget of disk space: for stored conversations, and by name.

Knows which file belongs to what and which goes first; nothing of what is in them.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

from turbospark_chat.errors import StateFileError, UsageError

DEFAULT_MEGABYTES: Final = 1024

_SUFFIX: Final = ".state"
_UNFINISHED_SECONDS: Final = 3600.0  # longer than any write takes
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")

Result = TypeVar("Result")


class WriteState(Protocol):
    """Writes a state to a file."""

    def __call__(self, path: Path, *, most_bytes: int) -> None:
        """Write it, or raise StateFileError, above all where it is longer than that."""


class WarmStates:
    """The files in a folder. Of all there are, those used longest ago go when there is no room."""

    def __init__(self, folder: Path, *, megabytes: int = DEFAULT_MEGABYTES) -> None:
        """Keep files of up to so many million bytes together; with 0 none is written, or read."""
        self._folder, self._budget = folder, megabytes * 10**6

    def of_conversation(self, conversation_id: int) -> Path:
        """Return where the state of a stored conversation is, or would be."""
        return self._folder / f"{conversation_id}{_SUFFIX}"

    def of_name(self, name: str) -> Path:
        """Return where the state of a prompt that a user named is, or would be.

        Raises:
            UsageError: no file can be called so.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name[:60]!r} is no name for a state: give letters, digits, `.`, `_` and `-`, up to 60 in all"
            )
        return self._folder / f"name-{name}{_SUFFIX}"

    def write(self, path: Path, write: WriteState) -> None:
        """Have a state written, and make room for it.

        Raises:
            StateFileError: it could not be written, or is larger than the budget; what was there before still is.
        """
        if self._budget == 0:
            return
        write(path, most_bytes=self._budget)
        self._make_room(for_path=path)

    def read(self, path: Path, read: Callable[[Path], Result]) -> Result | None:
        """Have a state read and note that it was used; None where there is none.

        Raises:
            StateFileError: it cannot be used.
        """
        if self._budget == 0 or not os.path.exists(
            path
        ):  # which, unlike the method, takes a folder without access for none
            return None
        result = read(path)
        with suppress(OSError):
            os.utime(path)
        return result

    def delete(self, path: Path) -> None:
        """Delete a state, if there is one.

        Raises:
            StateFileError: it is still there.
        """
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StateFileError(path, f"it cannot be deleted: {error.strerror or error}") from error

    def _make_room(self, *, for_path: Path) -> None:
        """Delete states until the rest is within the budget, and what killed programs left half written."""
        used = 0
        latest_first = sorted(self._files(), key=lambda file: -file[1].st_mtime_ns)
        for path, status in sorted(latest_first, key=lambda file: file[0] != for_path):
            if path.suffix != _SUFFIX:
                is_kept = time.time() - status.st_mtime < _UNFINISHED_SECONDS
            else:
                used += status.st_size
                is_kept = used <= self._budget
            if not is_kept:
                with suppress(OSError):
                    path.unlink()

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self._folder.iterdir():
                with suppress(OSError):  # another program may be making room too
                    yield path, path.stat()
