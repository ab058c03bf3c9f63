"""A turn under way as the screen shows it: events in, finished text out, live text and activity between."""

from collections.abc import Callable
from dataclasses import replace

from turbospark_chat.chat.turn_result import ReplyText, TurnEvent
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.live_text import LiveText
from turbospark_chat.terminal.status_bar import Activity

FIRST_LOOK_SECONDS = 0.02  # tokens seen within it came together, and how long they took is not known


class TurnView:
    """Sorts a turn's events for the screen. `clock` gives seconds."""

    def __init__(self, painter: Painter, *, clock: Callable[[], float]) -> None:
        self._painter, self._clock = painter, clock
        self._started = clock()
        self._first_token_at: float | None = None
        self._live = LiveText()
        self._in_reasoning = False
        self._activity = Activity()

    @property
    def activity(self) -> Activity:
        """Progress and rates so far."""
        return self._activity

    @property
    def live(self) -> str:
        """The row being written, styled."""
        return self._styled(self._live.row)

    def take(self, event: TurnEvent, *, width: int) -> str:
        """Handle an event; return text that is finished, each line whole, or nothing."""
        if isinstance(event, Prefill):
            self._activity = replace(
                self._activity, prefill_done=event.done, prefill_total=event.total, reused=event.reused,
                prefill_seconds=self._clock() - self._started,
            )  # fmt: skip
        elif isinstance(event, ReplyText):
            return self._take_text(event, width=width)
        else:
            return self._painter.style(str(event), "notice") + "\n"
        return ""

    def finish(self) -> str:
        """Return the reply's last row, if it has one."""
        row = self._styled(self._live.finish())
        return row + "\n" if row else ""

    def _take_text(self, event: ReplyText, *, width: int) -> str:
        now = self._clock()
        if self._first_token_at is None:
            self._first_token_at = now
        self._activity = replace(
            self._activity, n_tokens=event.n_tokens, decode_seconds=now - self._first_token_at
        )
        if now - self._first_token_at < FIRST_LOOK_SECONDS:
            self._activity = replace(self._activity, n_untimed=event.n_tokens)
        finished = ""
        if event.text and event.is_reasoning != self._in_reasoning:
            finished = self.finish()
            self._in_reasoning = event.is_reasoning
        lines = self._live.push(harmless(event.text), width=width)
        return finished + self._styled(lines)

    def _styled(self, text: str) -> str:
        if not self._in_reasoning:
            return text
        # Each line is styled by itself: a style must not run on over whatever is drawn next.
        return "\n".join(self._painter.style(line, "reasoning") for line in text.split("\n"))
