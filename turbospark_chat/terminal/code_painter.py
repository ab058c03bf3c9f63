"""Code in colours, by pygments through rich, and without a background of its own."""

from functools import cache

from rich.color import Color
from rich.style import Style
from rich.syntax import Syntax, SyntaxTheme
from rich.text import Text

COLOR_THEME = "ansi_light"  # the terminal's own colours, and those of them that most backgrounds show

_NO_COLOR = Color.parse("#000000")  # what rich takes for pygments' own colour of text


class CodePainter:
    """Colours code by a theme of rich's or pygments'."""

    def __init__(self, *, theme: str = COLOR_THEME) -> None:
        self._theme = _NoBackground(Syntax.get_theme(theme))

    def paint(self, code: str, *, language: str) -> Text:
        """Return the code in colours; in none if nobody knows the language."""
        if not is_language(language):
            return Text(code)
        text = Syntax(code, language, theme=self._theme).highlight(code)
        text.right_crop(len(text) - len(code))  # a lexer adds a newline
        return text if text.plain == code else Text(code)


@cache
def is_language(name: str) -> bool:
    """Whether code in the language can be coloured."""
    return bool(name) and Syntax("", name).lexer is not None


class _NoBackground(SyntaxTheme):
    """A theme's colours on the terminal's own background."""

    def __init__(self, theme: SyntaxTheme) -> None:
        self._theme = theme

    def get_style_for_token(self, token_type: tuple[str, ...]) -> Style:
        style = self._theme.get_style_for_token(token_type)
        return Style(
            color=None if style.color == _NO_COLOR else style.color,
            bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline,
        )  # fmt: skip

    def get_background_style(self) -> Style:
        return Style()
