"""Whole states set aside, so that several conversations share one model.

Knows nothing of what a state holds: it moves references and copies nothing. Choosing between the live state
and a parked one is the producer's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.errors import SettingError


class Parkable(Protocol):
    """What the pool asks of a state."""

    @property
    def n_bytes(self) -> int:
        """Bytes it occupies."""

    def reach(self, length: int) -> int:
        """Return how many positions it would hold after going back to at most `length`."""


State = TypeVar("State", bound=Parkable)


@dataclass(frozen=True, slots=True)
class Parked(Generic[State]):
    """A state set aside and the record of the ids it was built from."""

    prefix: KvPrefix
    state: State

    def n_served(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt it serves."""
        return self.state.reach(self.prefix.common_prefix(prompt_ids))


class SessionPool(Generic[State]):
    """Up to `capacity` parked states in `budget()` bytes. The live state is not a member.

    A parked state belongs to the pool until it is taken: whoever parked it goes on with another, or a stored
    entry would grow with the live conversation. A swap takes first and parks second, so it needs no free
    slot:

        parked = pool.take(prompt_ids)
        evicted = pool.park(live.prefix, live.state)
    """

    def __init__(self, capacity: int, *, budget: Callable[[], int] | None = None) -> None:
        """Hold up to `capacity` states; 0 keeps none, so that every park evicts.

        Args:
            budget: the bytes that all parked states may occupy, asked at every park; without it any number.

        Raises:
            SettingError: `capacity` is negative.
        """
        if capacity < 0:
            raise SettingError(f"the number of session slots is {capacity}; give 0 or more")
        self._capacity, self._budget = capacity, budget
        # Oldest first. Taking removes and parking appends, so the order of parking is the order of use.
        self._slots: list[Parked[State]] = []

    def __len__(self) -> int:
        """How many states are parked."""
        return len(self._slots)

    @property
    def n_bytes(self) -> int:
        """Bytes the parked states occupy."""
        return sum(parked.state.n_bytes for parked in self._slots)

    def park(self, prefix: KvPrefix, state: State) -> Sequence[Parked[State]]:
        """Set a state aside as the most recently used; return the usable states thrown away for it, oldest first.

        None when there was room, and when `prefix` is tainted or empty: such a state can serve no prompt, so
        it is not kept. One that has no room even alone is thrown away itself, and costs no other its place. A
        producer's `session_slot_evicted` is whether serving the prompt made this return a state.

        Raises:
            ValueError: `prefix` or `state` is in the pool already.
        """
        if prefix.is_tainted or len(prefix) == 0:
            return ()
        if any(parked.state is state or parked.prefix is prefix for parked in self._slots):
            raise ValueError("this state is parked already; take it before parking it again")
        parked, most = Parked(prefix, state), None if self._budget is None else max(self._budget(), 0)
        has_room = self._capacity > 0 and (most is None or state.n_bytes <= most)
        if has_room:
            self._slots.append(parked)
        evicted = []
        # Also where it had no room: the budget may have shrunk since the others were parked.
        while len(self._slots) > self._capacity or (most is not None and self.n_bytes > most):
            evicted.append(self._slots.pop(0))
        return evicted if has_room else [*evicted, parked]

    def evict(self) -> Parked[State] | None:
        """Throw away the least recently used state and return it; None where there is none."""
        return self._slots.pop(0) if self._slots else None

    def best_match(self, prompt_ids: Sequence[int]) -> int:
        """Return the longest prefix of `prompt_ids` that a parked state could serve, 0 when none could."""
        return max((parked.n_served(prompt_ids) for parked in self._slots), default=0)

    def take(self, prompt_ids: Sequence[int]) -> Parked[State] | None:
        """Remove and return the best match for `prompt_ids`, the most recently used among equals.

        None, and nothing removed, when none could serve even its first id.
        """
        longest = self.best_match(prompt_ids)
        if longest == 0:
            return None
        matching = [i for i, parked in enumerate(self._slots) if parked.n_served(prompt_ids) == longest]
        return self._slots.pop(matching[-1])
