"""How replies are shown, as the user may change it between two turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.code_painter import COLOR_THEME
from turbospark_chat.terminal.interface_options import Thinking
from turbospark_chat.terminal.reply_view import ReplyView
from turbospark_chat.terminal.turn_view import TurnView

_NO_LIMIT = 1_000_000  # rows of a block, where it is there as a whole


@dataclass(slots=True)
class Display:
    """What the next reply will look like. `clock` gives seconds."""

    painter: Painter
    code_theme: str = COLOR_THEME
    is_markdown: bool = True
    thinking: Thinking = Thinking.FOLD
    clock: Callable[[], float] = time.monotonic

    def make_view(self) -> TurnView:
        """Return the view of a turn that begins now."""
        return TurnView(
            self.painter,
            clock=self.clock,
            is_markdown=self.is_markdown,
            thinking=self.thinking,
            code_theme=self.code_theme,
        )

    def draw_reply(self, text: str, *, width: int, color: bool = True) -> list[str]:
        """Return the rows of a whole reply."""
        painter = self.painter if color else Painter(color=False)
        view = ReplyView(painter, is_markdown=self.is_markdown, code_theme=self.code_theme)
        rows = view.push(text, width=width, height=_NO_LIMIT) + view.finish(width=width)
        return rows.removesuffix("\n").split("\n")
