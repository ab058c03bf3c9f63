"""From rich renderables to text with escape codes, or without, for whoever paints. Keeps model text harmless."""

import io
import re

from rich.console import Console, RenderableType
from rich.theme import Theme

from turbospark_chat.terminal.theme import STYLES

# C0 and C1 controls but newline and tab, and the bidirectional overrides: a model's text may not drive a terminal.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Painter:
    """Renders to a string, in colour or not."""

    def __init__(self, *, color: bool) -> None:
        self._color = color

    def render(self, renderable: RenderableType, *, width: int) -> str:
        """Return what rich draws in `width` columns, without a last newline."""
        buffer = io.StringIO()
        console = Console(
            file=buffer, width=max(width, 1), force_terminal=self._color, no_color=not self._color,
            color_system="standard" if self._color else None, theme=Theme(STYLES), highlight=False,
            legacy_windows=False,
        )  # fmt: skip
        console.print(renderable, end="", soft_wrap=False)
        return buffer.getvalue()

    def style(self, text: str, style: str) -> str:
        """Return `text`, wrapped by nobody, in a named style."""
        if not self._color or not text:
            return text
        return Theme(STYLES).styles[style].render(text)


def harmless(text: str) -> str:
    """Return text whose control characters are shown as U+FFFD instead of obeyed."""
    return _UNSAFE.sub("\ufffd", text)
