"""What a model thinks before it answers, as the screen shows it: as it comes, folded to one line, or not at all."""

from collections.abc import Callable

from rich.text import Text

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.interface_options import Thinking
from turbospark_chat.terminal.live_text import LiveText
from turbospark_chat.terminal.wrapping import wrap


class ThinkingView:
    """What one turn thinks: it begins with `push` and goes on until `end`. `clock` gives seconds."""

    def __init__(self, painter: Painter, *, mode: Thinking, clock: Callable[[], float]) -> None:
        self._painter, self._mode, self._clock = painter, mode, clock
        self._pieces: list[str] = []
        self._live = LiveText()
        self._started: float | None = None
        self._n_tokens = 0

    @property
    def text(self) -> str:
        """All that was thought so far."""
        return "".join(self._pieces)

    @property
    def is_open(self) -> bool:
        """Whether the thought goes on."""
        return self._started is not None

    @property
    def is_shown(self) -> bool:
        """Whether the thought itself is shown."""
        return self._mode is Thinking.SHOW

    def push(self, text: str, *, n_tokens: int, width: int) -> str:
        """Add text that took `n_tokens`; return the rows that are finished, each ending in a newline, or nothing."""
        if self._started is None:
            self._started = self._clock()
        self._n_tokens += n_tokens
        self._pieces.append(harmless(text))
        return self._styled(self._live.push(self._pieces[-1], width=width)) if self.is_shown else ""

    def live(self, *, width: int) -> str:
        """Return the row that stands for the thought that goes on."""
        if not self.is_open or self._mode is Thinking.HIDE:
            return ""
        if self.is_shown:
            return self._styled(self._live.row)
        line = f"thinking … {', '.join(self._cost())} (Ctrl-T shows it)"
        return self._styled(wrap(Text(line), width=width)[0].plain)  # one row, whatever the width

    def end(self, *, width: int) -> str:
        """End the thought; return its last row, or the line it is folded to."""
        if self._started is None:
            return ""
        shown = ""
        if self.is_shown:
            shown = self._styled(_line(self._live.finish()))
        elif self._mode is Thinking.FOLD:
            tokens, seconds = self._cost()
            line = Text(f"[thought for {seconds}, {tokens}; Ctrl-T shows it]")
            shown = self._styled("".join(_line(row.plain) for row in wrap(line, width=width)))
        self._started = None
        return shown

    def open(self, *, width: int) -> str:
        """Show from now on what is thought; return the finished rows of what has been."""
        if self.is_shown:
            return ""
        self._mode = Thinking.SHOW
        rows = self._live.push(self.text, width=width)
        return self._styled(rows if self.is_open else rows + _line(self._live.finish()))

    def _cost(self) -> tuple[str, str]:
        """Return the tokens and seconds of the thought that goes on."""
        seconds = self._clock() - (self._started or 0.0)
        return "1 token" if self._n_tokens == 1 else f"{self._n_tokens} tokens", f"{seconds:.1f} s"

    def _styled(self, text: str) -> str:
        # Each line is styled by itself: a style must not run on over whatever is drawn next.
        return "\n".join(self._painter.style(line, "reasoning") for line in text.split("\n"))


def _line(row: str) -> str:
    return f"{row}\n" if row else ""
