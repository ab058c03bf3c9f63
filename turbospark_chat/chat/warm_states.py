"""Files of what a model has computed, kept within a budget of disk space: for stored conversations, and by name.

Knows which file belongs to what and which goes first; nothing of what is in them.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from turbospark_chat.chat.counted import counted
from turbospark_chat.errors import StateFileError, UsageError

DEFAULT_MEGABYTES: Final = 1024

_SUFFIX: Final = ".state"
_NAMED: Final = "name-"
_UNFINISHED_SECONDS: Final = 3600.0  # longer than any write takes
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")
_MOST_SPELLED_OUT: Final = 5

Result = TypeVar("Result")


class WriteState(Protocol):
    """Writes a state to a file."""

    def __call__(self, path: Path, *, most_bytes: int) -> None:
        """Write it, or raise StateFileError, above all where it is longer than that."""


@dataclass(frozen=True, slots=True)
class WarmState:
    """A file of what was computed. `used` is in seconds since the epoch."""

    path: Path
    n_bytes: int
    used: float

    @property
    def conversation_id(self) -> int | None:
        """The id of the stored conversation it belongs to, None where it belongs to none."""
        return int(self.path.stem) if self.path.stem.isdecimal() else None

    @property
    def name(self) -> str | None:
        """What a user called it, None where nobody did."""
        stem = self.path.stem
        return stem.removeprefix(_NAMED) if stem.startswith(_NAMED) else None

    @property
    def reference(self) -> str:
        """What refers to it alone: a conversation's id, or its name; behind `name:` if that looks like an id."""
        name = self.name
        if name is None:
            return self.path.stem
        return f"name:{name}" if name.isdecimal() else name


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """States, the latest used first, were deleted to keep all there are within so many bytes."""

    deleted: tuple[WarmState, ...]
    budget: int

    def __str__(self) -> str:
        """Say it as one line."""
        those = [state.reference for state in self.deleted[:_MOST_SPELLED_OUT]]
        if n_more := len(self.deleted) - len(those):
            those.append(f"{n_more} more")
        states = counted(len(self.deleted), "computed state")
        n_bytes = sum(state.n_bytes for state in self.deleted)
        return (
            f"{states} of {n_bytes / 1e6:,.1f} MB deleted to keep to the budget of"
            f" {self.budget / 1e6:,.0f} MB: {', '.join(those)}"
        )


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
        return self._folder / f"{_NAMED}{name}{_SUFFIX}"

    def list(self) -> tuple[WarmState, ...]:
        """Return those there are, the latest used first."""
        latest_first = sorted(self._files(), key=lambda file: -file[1].st_mtime_ns)
        return tuple(
            WarmState(path, status.st_size, status.st_mtime)
            for path, status in latest_first
            if path.suffix == _SUFFIX
        )

    def find(self, reference: str) -> WarmState:
        """Return the one that is referred to.

        Raises:
            StateFileError: there is none.
        """
        for state in self.list():
            if state.reference == reference:
                return state
        raise StateFileError(self._folder, f"no state {reference} is there; `ts states` lists them")

    def write(self, path: Path, write: WriteState) -> MadeRoom | None:
        """Have a state written, and make room for it; return what had to go, None where nothing had to.

        Raises:
            StateFileError: it could not be written, or is larger than the budget; what was there before still is.
        """
        if self._budget == 0:
            return None
        write(path, most_bytes=self._budget)
        self._clear_unfinished()
        deleted = self._make_room(for_path=path)
        return MadeRoom(tuple(deleted), self._budget) if deleted else None

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

    def _make_room(self, *, for_path: Path) -> Sequence[WarmState]:
        """Delete states until the rest is within the budget, and return them."""
        n_bytes, deleted = 0, []
        for state in sorted(self.list(), key=lambda state: state.path != for_path):
            n_bytes += state.n_bytes
            if n_bytes > self._budget:
                with suppress(OSError):
                    state.path.unlink()
                    deleted.append(state)
        return deleted

    def _clear_unfinished(self) -> None:
        """Delete what killed programs left half written."""
        for path, status in self._files():
            if path.suffix != _SUFFIX and time.time() - status.st_mtime >= _UNFINISHED_SECONDS:
                with suppress(OSError):
                    path.unlink()

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self._folder.iterdir():
                with suppress(OSError):  # another program may be making room too
                    yield path, path.stat()
