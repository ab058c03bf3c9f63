"""From rich renderables to text with escape codes, or without, for whoever paints."""

import io

from rich.console import Console, RenderableType
from rich.theme import Theme

from turbospark_chat.terminal.theme import STYLES


class Painter:
    """Renders to a string, in colour or not. A `str` in a renderable is what it says: no markup, no emoji codes."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._theme = Theme(STYLES)

    def render(self, renderable: RenderableType, *, width: int) -> str:
        """Return what rich draws in `width` columns, without a last newline."""
        buffer = io.StringIO()
        console = Console(
            file=buffer, width=max(width, 1), color_system="standard" if self._color else None,
            theme=self._theme, legacy_windows=False, markup=False, emoji=False, highlight=False,
        )  # fmt: skip
        console.print(renderable, end="")
        return buffer.getvalue().removesuffix("\n")

    def style(self, text: str, style: str) -> str:
        """Return `text`, wrapped by nobody, in a named style."""
        return self._theme.styles[style].render(text) if self._color else text
