"""The status bar as text for the screen, drawn anew only where somebody could read the difference."""

from collections.abc import Callable
from dataclasses import replace

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.status_bar import Activity, StatusSnapshot, draw_status

STEADY_SECONDS = 0.2  # that figures stand still while they count


class BarPainter:
    """Draws the bar. While only counts and rates change, it draws a few times a second: it costs what a token costs."""

    def __init__(self, painter: Painter, *, clock: Callable[[], float]) -> None:
        self._painter, self._clock = painter, clock
        self._drawn: tuple[StatusSnapshot, int] | None = None
        self._drawn_at = 0.0
        self._text = ""

    def draw(self, status: StatusSnapshot, width: int) -> str:
        """Return the bar for `width` columns."""
        now, key = self._clock(), (_without_counts(status), width)
        if key != self._drawn or now - self._drawn_at >= STEADY_SECONDS:
            self._text = self._painter.render(draw_status(status, width), width=width)
            self._drawn, self._drawn_at = key, now
        return self._text


def _without_counts(status: StatusSnapshot) -> StatusSnapshot:
    """Return what is left where nothing counts: the phase of a turn is still told."""
    activity = status.activity
    if activity is None:
        return status
    phase = Activity(
        prefill_total=activity.prefill_total,
        reused=activity.reused,
        n_tokens=min(activity.n_tokens, 1),
        n_queued=activity.n_queued,
    )
    return replace(status, context_used=0, activity=phase)
