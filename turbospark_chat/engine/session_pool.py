"""Whole states set aside, so that several conversations share one model.

Knows nothing of what a state holds: it moves references and copies nothing. Choosing between the live state
and a parked one is the producer's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.errors import SettingError

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Parked(Generic[State]):
    """A state set aside and the record of the ids it was built from."""

    prefix: KvPrefix
    state: State


class SessionPool(Generic[State]):
    """Up to `capacity` parked states. The live state is not a member.

    A parked state belongs to the pool until it is taken: whoever parked it goes on with another, or a stored
    entry would grow with the live conversation. A swap takes first and parks second, so it needs no free
    slot:

        parked = pool.take(prompt_ids)
        evicted = pool.park(live.prefix, live.state)
    """

    def __init__(self, capacity: int) -> None:
        """Hold up to `capacity` states; 0 keeps none, so that every park evicts.

        Raises:
            SettingError: `capacity` is negative.
        """
        if capacity < 0:
            raise SettingError(f"the number of session slots is {capacity}; give 0 or more")
        self._capacity = capacity
        # Oldest first. Taking removes and parking appends, so the order of parking is the order of use.
        self._slots: list[Parked[State]] = []

    def __len__(self) -> int:
        """How many states are parked."""
        return len(self._slots)

    def park(self, prefix: KvPrefix, state: State) -> Parked[State] | None:
        """Set a state aside as the most recently used; return the usable state thrown away for it.

        None when there was room, and when `prefix` is tainted or empty: such a state can serve no prompt, so
        it is not kept. With capacity 0 the state itself is thrown away. A producer's `session_slot_evicted`
        is whether serving the prompt made this return a state.

        Raises:
            ValueError: `prefix` or `state` is in the pool already.
        """
        if prefix.is_tainted or len(prefix) == 0:
            return None
        if any(parked.state is state or parked.prefix is prefix for parked in self._slots):
            raise ValueError("this state is parked already; take it before parking it again")
        self._slots.append(Parked(prefix, state))
        return self._slots.pop(0) if len(self._slots) > self._capacity else None

    def best_match(self, prompt_ids: Sequence[int]) -> int:
        """Return the longest prefix of `prompt_ids` that a parked state could serve, 0 when none could."""
        return max((parked.prefix.common_prefix(prompt_ids) for parked in self._slots), default=0)

    def take(self, prompt_ids: Sequence[int]) -> Parked[State] | None:
        """Remove and return the best match for `prompt_ids`, the most recently used among equals.

        None, and nothing removed, when no parked state shares its first id.
        """
        longest = self.best_match(prompt_ids)
        if longest == 0:
            return None
        matching = [i for i, p in enumerate(self._slots) if p.prefix.common_prefix(prompt_ids) == longest]
        return self._slots.pop(matching[-1])
