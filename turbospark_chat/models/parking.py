"""What the runner asks of the record of a state's ids, and of a pool in which states wait.

The arrows keep models from the engine, whose KvPrefix and SessionPool are these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from turbospark_chat.models.state import State, StateT


class PrefixRecord(Protocol):
    """The record of ids the runner keeps true (the engine's KvPrefix)."""

    def __len__(self) -> int:
        """How many positions it describes."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids at those positions."""

    @property
    def is_tainted(self) -> bool:
        """Whether the state consumed something its ids do not describe."""

    def record(self, tokens: Sequence[int], pos0: int) -> None:
        """Note that the state now holds `tokens` at positions `pos0` and up."""

    def rewind_to(self, position: int) -> None:
        """Cut to `position`; nothing happens when it is shorter."""

    def clear(self) -> None:
        """Empty it."""

    def common_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions can serve `prompt_ids`, at most all but its last id."""


RecordT = TypeVar("RecordT", bound=PrefixRecord)
RecordT_co = TypeVar("RecordT_co", bound=PrefixRecord, covariant=True)
StateT_co = TypeVar("StateT_co", bound=State, covariant=True)


class Parked(Protocol[RecordT_co, StateT_co]):
    """A state set aside, and the record of its ids."""

    @property
    def prefix(self) -> RecordT_co:
        """The record."""

    @property
    def state(self) -> StateT_co:
        """The state."""


class StatePool(Protocol[RecordT, StateT]):
    """Where states of other conversations wait (the engine's SessionPool)."""

    def park(self, prefix: RecordT, state: StateT) -> Sequence[Parked[RecordT, StateT]]:
        """Set a state aside; return the usable ones thrown away for it."""

    def best_match(self, prompt_ids: Sequence[int]) -> int:
        """Return the longest prefix of `prompt_ids` that a parked state can go back to."""

    def take(self, prompt_ids: Sequence[int]) -> Parked[RecordT, StateT] | None:
        """Remove and return that state."""

    def evict(self) -> Parked[RecordT, StateT] | None:
        """Throw the state away that waits longest; return it, or None where there is none."""


@dataclass(frozen=True, slots=True)
class Evicted(Generic[RecordT]):
    """What is left of a state that was thrown away: its ids, and how far it could go back from their end."""

    prefix: RecordT
    slack: int

    def n_served(self, prompt_ids: Sequence[int]) -> int:
        """Return how many positions of a prompt it would have served for certain: its checkpoints are gone."""
        n_common = self.prefix.common_prefix(prompt_ids)
        return n_common if len(self.prefix) - n_common <= self.slack else 0
