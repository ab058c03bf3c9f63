"""A turn under way as the screen shows it: events in, finished text out, live text and activity between."""

from collections.abc import Callable
from dataclasses import replace

from turbospark_chat.chat.turn_result import NotKept, ReplyText, StoredApart, TurnEvent
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.interface_options import Thinking
from turbospark_chat.terminal.reply_view import ReplyView
from turbospark_chat.terminal.status_bar import Activity
from turbospark_chat.terminal.thinking import ThinkingView

FIRST_LOOK_SECONDS = 0.02  # tokens seen within it came together, and how long they took is not known


class TurnView:
    """Sorts a turn's events for the screen. `clock` gives seconds."""

    def __init__(
        self,
        painter: Painter,
        *,
        clock: Callable[[], float],
        is_markdown: bool,
        thinking: Thinking,
        code_theme: str,
    ) -> None:
        self._painter, self._clock = painter, clock
        self._started = clock()
        self._first_token_at: float | None = None
        self._reply = ReplyView(painter, is_markdown=is_markdown, code_theme=code_theme)
        self._thinking = ThinkingView(painter, mode=thinking, clock=clock)
        self._activity = Activity()

    @property
    def activity(self) -> Activity:
        """Progress and rates so far."""
        return self._activity

    def live_text(self, *, width: int, height: int) -> str:
        """Return what is being written, styled: at most `height` rows, without a last newline."""
        if self._thinking.is_open:
            return self._thinking.live(width=width)
        return self._reply.live(width=width, height=height)

    def take(self, event: TurnEvent, *, width: int, height: int) -> str:
        """Handle an event; return text that is finished, each line whole, or nothing.

        A block that would need more than `height` rows while it is written goes out in parts.
        """
        if isinstance(event, Prefill):
            self._activity = replace(
                self._activity, prefill_done=event.done, prefill_total=event.total, reused=event.reused,
                prefill_seconds=self._clock() - self._started,
            )  # fmt: skip
            return ""
        if isinstance(event, ReplyText):
            return self._take_text(event, width=width, height=height)
        style = "bar.warn" if isinstance(event, NotKept | StoredApart) else "notice"
        return self.finish(width=width) + self._painter.style(harmless(str(event)), style) + "\n"

    def finish(self, *, width: int) -> str:
        """Return what was still being written."""
        return self._thinking.end(width=width) + self._reply.finish(width=width)

    def open_thinking(self, *, width: int) -> str:
        """Show this turn's thinking from now on; return the finished rows of what was thought so far."""
        return self._thinking.open(width=width)

    def _take_text(self, event: ReplyText, *, width: int, height: int) -> str:
        n_new = event.n_tokens - self._activity.n_tokens
        self._count(event.n_tokens)
        if event.is_reasoning if event.text else self._thinking.is_open:
            finished = "" if self._thinking.is_open else self._reply.finish(width=width)
            return finished + self._thinking.push(event.text, n_tokens=n_new, width=width)
        finished = ""
        if self._thinking.is_open:
            finished = self._thinking.end(width=width) + ("\n" if self._thinking.is_shown else "")
        return finished + self._reply.push(event.text, width=width, height=height)

    def _count(self, n_tokens: int) -> None:
        now = self._clock()
        if self._first_token_at is None:
            self._first_token_at = now
        seconds = now - self._first_token_at
        self._activity = replace(self._activity, n_tokens=n_tokens, decode_seconds=seconds)
        if seconds < FIRST_LOOK_SECONDS:
            self._activity = replace(self._activity, n_untimed=n_tokens)
