"""What goes above the input: renderables, lines, messages, turns shown again, errors. Knows no session."""

import traceback
from collections.abc import Sequence
from itertools import chain, repeat

from rich.console import RenderableType
from rich.text import Text

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.counted import counted
from turbospark_chat.errors import TurboSparkError
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.display import Display
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.screen import Screen
from turbospark_chat.terminal.wrapping import wrap

PROMPT = "> "
MOST_MESSAGE_ROWS = 20  # of a message that are shown again once it is sent
MOST_FAULTS = 3  # of the screen itself that are shown between two inputs
TURNS_SHOWN_AGAIN = 3  # of a conversation that is gone on with


class ScreenWriter:
    """Writes finished text into the scrollback. `is_debug` adds tracebacks to errors."""

    def __init__(self, screen: Screen, painter: Painter, *, is_debug: bool) -> None:
        self._screen, self._painter, self._is_debug = screen, painter, is_debug
        self._has_written = False
        self._faults: set[str] = set()

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._screen.size.columns

    def write(self, text: str) -> None:
        """Write finished rows, escape codes included, each ending in a newline."""
        self._has_written = True
        self._screen.write_above(text)

    def show(self, content: RenderableType) -> None:
        """Write what rich draws."""
        rows = self._painter.render(content, width=self.width).split("\n")
        self.write("".join(f"{row.rstrip()}\n" for row in rows))

    def say(self, text: str, style: str) -> None:
        """Write a text in one style."""
        self.show(Text(harmless(text), style))

    def show_message(self, message: str) -> None:
        """Write a message as it was sent, a long one in part."""
        self._write_message(message, "message")

    def show_turns(self, turns: Sequence[Turn], display: Display) -> None:
        """Write the last turns of a conversation again, dimmed, and say how many came before them."""
        n_before = max(len(turns) - TURNS_SHOWN_AGAIN, 0)
        if n_before:
            self.say(f"… {counted(n_before, 'earlier turn')}; `/history` shows all", "notice")
        for turn in turns[n_before:]:
            self._write_message(turn.user.content, "notice")
            rows = display.draw_reply(turn.reply.content, width=self.width, color=False)
            self.write("".join(f"{self._painter.style(row, 'notice')}\n" for row in rows))
            if not turn.reply.complete:
                self.say(
                    "[unfinished; `/continue` goes on]" if turn is turns[-1] else "[unfinished]", "notice"
                )

    def _write_message(self, message: str, style: str) -> None:
        """Write a message behind the prompt; a blank row sets it off from what was before."""
        if self._has_written:
            self.write("\n")
        width = max(self.width - len(PROMPT), 1)
        shown = message[: (MOST_MESSAGE_ROWS + 1) * width]  # no more than these can be of use
        rows = [row.plain for row in wrap(Text(harmless(shown).expandtabs()), width=width)]
        if len(shown) < len(message) or len(rows) > MOST_MESSAGE_ROWS + 1:
            rows = [*rows[:MOST_MESSAGE_ROWS], f"… {len(message):,} characters in all"]
        prefixes = chain([PROMPT], repeat(" " * len(PROMPT)))
        lines = (f"{prefix}{row}".rstrip() for prefix, row in zip(prefixes, rows, strict=False))
        self.write("".join(f"{self._painter.style(line, style)}\n" for line in lines))

    def show_error(self, error: BaseException) -> None:
        """Write an error as one line, with `is_debug` where it came from too."""
        if self._is_debug:
            self.say("".join(traceback.format_exception(error)).rstrip(), "error")
        expected = isinstance(error, TurboSparkError)
        text = str(error) if expected else f"{type(error).__name__}: {error}; run with `--debug` for where"
        self.say(f"error: {text}", "error")

    def show_fault(self, error: BaseException) -> None:
        """Write an error met while drawing. One that nobody foresaw may come with every frame, and is written once."""
        fault = repr(error)
        if isinstance(error, TurboSparkError):
            self.show_error(error)
        elif fault not in self._faults and len(self._faults) < MOST_FAULTS:
            self._faults.add(fault)
            self.show_error(error)

    def forget_faults(self) -> None:
        """Write faults anew: the user has seen those there were, and goes on."""
        self._faults.clear()
