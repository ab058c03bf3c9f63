"""From rich renderables to text with escape codes, or without, for whoever paints."""

import io
from collections.abc import Iterable, Mapping

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from turbospark_chat.terminal.theme import STYLES


class Painter:
    """Renders to a string, in colour or not. A `str` in a renderable is what it says: no markup, no emoji codes."""

    def __init__(self, *, color: bool, styles: Mapping[str, str] = STYLES) -> None:
        self._color = color
        self._theme = Theme(dict(styles))
        self._rows = self._console(io.StringIO(), width=1)  # of no width of its own: it gives styles only

    def render(self, renderable: RenderableType, *, width: int) -> str:
        """Return what rich draws in `width` columns, without a last newline."""
        buffer = io.StringIO()
        self._console(buffer, width=width).print(renderable, end="")
        return buffer.getvalue().removesuffix("\n")

    def style(self, text: str, style: str) -> str:
        """Return `text`, wrapped by nobody, in a named style."""
        return self._theme.styles[style].render(text) if self._color else text

    def row(self, text: Text) -> str:
        """Return one row, which fits its screen already, without spaces at its end."""
        return self._join(text.render(self._rows))

    def rows(self, renderable: RenderableType, *, width: int) -> list[str]:
        """Return the rows rich draws in `width` columns, without the spaces it fills them up with."""
        console = self._console(io.StringIO(), width=width)
        return [self._join(row) for row in console.render_lines(renderable, pad=False)]

    def _console(self, file: io.StringIO, *, width: int) -> Console:
        return Console(
            file=file, width=max(width, 1), color_system="standard" if self._color else None,
            theme=self._theme, legacy_windows=False, markup=False, emoji=False, highlight=False,
        )  # fmt: skip

    def _join(self, segments: Iterable[Segment]) -> str:
        pieces = [(segment.text, segment.style) for segment in Segment.simplify(segments)]
        while pieces and not pieces[-1][0].strip(" \n"):
            pieces.pop()
        if pieces:
            pieces[-1] = (pieces[-1][0].rstrip(" \n"), pieces[-1][1])
        return "".join(self._styled(text, style) for text, style in pieces)

    def _styled(self, text: str, style: Style | None) -> str:
        if not self._color or style is None or (text.isspace() and not _shows_on_spaces(style)):
            return text
        return style.render(text, color_system=ColorSystem.STANDARD)


def _shows_on_spaces(style: Style) -> bool:
    return bool(style.bgcolor or style.underline or style.reverse or style.strike)
