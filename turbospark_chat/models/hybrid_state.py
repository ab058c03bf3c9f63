"""One state made of two: a KV cache for the attention layers of a model, and memories for its recurrent ones.

Each part says how far it can go back and the least counts. Knows positions, never token ids.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from numpy.typing import NDArray

from turbospark_chat.models.layers import Array
from turbospark_chat.models.state import State


class Part(State, Protocol):
    """A state that a forward pass writes to, and that counts what was written once it is committed."""

    def commit(self, length: int) -> None:
        """Count the positions before `length`."""


AttentionT = TypeVar("AttentionT", bound=Part)
RecurrentT = TypeVar("RecurrentT", bound=Part)


class HybridState(Generic[AttentionT, RecurrentT]):
    """Two parts of one length. Where an interrupt left them at two, the shorter counts until the next `truncate`."""

    def __init__(self, attention: AttentionT, recurrent: RecurrentT) -> None:
        self.attention, self.recurrent = attention, recurrent

    def __len__(self) -> int:
        """How many positions both hold."""
        return min(len(part) for part in self._parts)

    @property
    def n_bytes(self) -> int:
        """See `State`."""
        return sum(part.n_bytes for part in self._parts)

    @property
    def slack(self) -> int:
        """See `State`."""
        return min(part.slack for part in self._parts)

    def commit(self, length: int) -> None:
        """Count the positions before `length`, once every layer of both has written them.

        What goes back furthest is committed first, so that after an interrupt in between it follows the other.
        """
        for part in sorted(self._parts, key=lambda part: part.slack, reverse=True):
            part.commit(length)

    def reach(self, length: int) -> int:
        """See `State`. Where one part goes back to may be out of the other's reach, so they vote until both agree."""
        agreed = max(length, 0)
        while (least := min(part.reach(agreed) for part in self._parts)) < agreed:
            agreed = least
        return agreed

    def truncate(self, length: int) -> int:
        """See `State`."""
        kept = self.reach(length)
        while any(part.truncate(kept) != kept for part in self._parts):
            kept = self.reach(kept)
        return kept

    def mark(self) -> None:
        """See `State`."""
        for part in self._parts:
            part.mark()

    def fork(self, length: int) -> Self:
        """See `State`."""
        kept = self.reach(length)
        return type(self)(self.attention.fork(kept), self.recurrent.fork(kept))

    def export(self) -> Mapping[str, NDArray[Any]]:
        """Return what the parts export, each under its own name and theirs."""
        return {
            f"{name} {inner}": array for name, part in self._named for inner, array in part.export().items()
        }

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `State`."""
        self.truncate(0)
        try:
            shares: dict[str, dict[str, NDArray[Any]]] = {name: {} for name, _ in self._named}
            for full_name, array in arrays.items():
                name, _, inner = full_name.partition(" ")
                if name not in shares:
                    raise ValueError(f"`{full_name}` is not part of this state")
                shares[name][inner] = array
            for name, part in self._named:
                part.restore(length, shares[name])
        except BaseException:
            self.truncate(0)
            raise

    def as_floats(self) -> Iterator[tuple[str, Array]]:
        """See `State`."""
        for name, part in self._named:
            yield from ((f"{name} {inner}", array) for inner, array in part.as_floats())

    @property
    def _parts(self) -> tuple[AttentionT, RecurrentT]:
        return self.attention, self.recurrent

    @property
    def _named(self) -> tuple[tuple[str, Part], tuple[str, Part]]:
        return ("attention", self.attention), ("recurrent", self.recurrent)
