"""Copies of a state at lengths to come back to, for states that cannot go back by themselves.

Knows lengths; what a copy holds is its owner's affair.
"""

from typing import Generic, TypeVar

Copy = TypeVar("Copy")

MOST_CHECKPOINTS = 8
_NEAR = 32  # positions: gaps so small are as good as none


class Checkpoints(Generic[Copy]):
    """Up to `capacity` copies, oldest position first. A copy is never handed out to be written to.

    When there is no room, a copy between the first and the last goes: the one that leaves the smallest gap for how far
    back it is. So the system prompt's end and the newest turn stay within reach, and going back d positions costs
    some multiple of d, however long the conversation: spread evenly they would cost a share of all of it.
    """

    def __init__(self, capacity: int = MOST_CHECKPOINTS) -> None:
        self._capacity = capacity
        self._copies: dict[int, Copy] = {}  # by length, ascending

    def __len__(self) -> int:
        """How many copies there are."""
        return len(self._copies)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copies, that of the shortest length first."""
        return tuple(self._copies.values())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths they were taken at, ascending."""
        return tuple(self._copies)

    def add(self, length: int, copy: Copy) -> None:
        """Keep a copy of the state at `length`; those at and past it go."""
        self.cut(length - 1)
        self._copies[length] = copy
        while len(self._copies) > self._capacity:  # more than one where an interrupt came between
            del self._copies[self._least_missed()]

    def newest(self, length: int) -> tuple[int, Copy] | None:
        """Return the longest copy of at most `length` positions and its length."""
        return next(((at, self._copies[at]) for at in reversed(self._copies) if at <= length), None)

    def cut(self, length: int) -> None:
        """Drop the copies of more than `length` positions: what they follow is no longer so."""
        for at in [at for at in self._copies if at > length]:
            del self._copies[at]

    def until(self, length: int) -> "Checkpoints[Copy]":
        """Return the copies of at most `length` positions, for a state that goes its own way from there."""
        fork: Checkpoints[Copy] = Checkpoints(self._capacity)
        fork._copies = {at: copy for at, copy in self._copies.items() if at <= length}
        return fork

    def _least_missed(self) -> int:
        lengths = self.lengths
        if len(lengths) < 3:
            return lengths[0]
        middle = range(1, len(lengths) - 1)
        return lengths[
            min(middle, key=lambda i: (lengths[i + 1] - lengths[i - 1]) / (lengths[-1] - lengths[i] + _NEAR))
        ]
