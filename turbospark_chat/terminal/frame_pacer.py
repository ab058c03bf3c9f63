"""How long the screen rests between two looks at a reply: the more drawing takes, the rarer it gets."""

from collections.abc import Callable

FRAME_SECONDS = 0.04  # between two frames at least
SLOWEST_FRAME = 0.25  # at most, whatever they take: a slow terminal stays in use
DRAWING_SHARE = 0.03  # of a core that drawing may take, since the model wants all of them


class FramePacer:
    """Tells the rest after each frame. `clock` gives the seconds that this thread has computed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent = clock()

    def wake(self) -> None:
        """Begin anew: what was spent while there was nothing to draw counts for no frame."""
        self._spent = self._clock()

    def rest(self) -> float:
        """Return how long to wait now, by what was spent since the last rest."""
        spent = self._clock()
        taken, self._spent = spent - self._spent, spent
        return min(max(FRAME_SECONDS, taken / DRAWING_SHARE), SLOWEST_FRAME)
