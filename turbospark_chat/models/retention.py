"""Which positions of a layer a cache keeps: all of them, or those that a sliding window and some slack need.

Knows positions, no arrays.
"""

from collections.abc import Iterable
from dataclasses import dataclass

GROWTH_STEP = 256  # positions
WINDOW_SLACK = 512  # positions that a layer with a window can go back, where nothing else is asked for
WINDOW_CHECKPOINTS = 4  # of what its older positions were


@dataclass(frozen=True, slots=True)
class Retention:
    """What a layer's rows hold: position p stands in row p - base, where `base` grows with the window.

    `slack` is how many positions it can go back. Without a `window` no position is dropped, and base stays 0.
    """

    window: int | None
    slack: int = WINDOW_SLACK

    def first_seen(self, length: int) -> int:
        """Return the first position that the token at `length` sees: what goes on from there needs those from it on."""
        return 0 if self.window is None else max(0, length - self.window + 1)

    def first_kept(self, length: int) -> int:
        """Return the first position that `length` filled ones are to hold on to, so that they can go back."""
        return 0 if self.window is None else max(0, length - self.window - self.slack)

    def capacity(self, n_rows: int, present: int) -> int:
        """Return the room for at least `n_rows` that takes the place of `present`: whole steps, and half as much again.

        A window has room for a step beyond what it holds on to, so that rows are moved once a step.
        """
        roomy = max(n_rows, present * 3 // 2)
        if self.window is not None:
            roomy = max(n_rows, min(roomy, self.window + self.slack + GROWTH_STEP))
        return -(-roomy // GROWTH_STEP) * GROWTH_STEP

    def n_rows(self, length: int) -> int:
        """Return the rows that `length` positions take at most, with the checkpoints' and without a started step."""
        if self.window is None:
            return length
        held = min(length, self.window + self.slack + GROWTH_STEP)
        return held + WINDOW_CHECKPOINTS * min(length, self.window - 1)


def count_rows(windows: Iterable[int | None], length: int, *, slack: int) -> int:
    """Return the rows that `length` positions take in layers with these windows together."""
    return sum(Retention(window, slack).n_rows(length) for window in windows)
