"""The styles used on screen, by name, and the themes: what each of them looks like.

A style is text that rich reads; nothing else here knows rich, so that themes can be named without loading it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from turbospark_chat.errors import SettingError

# Only the terminal's own sixteen colours, which every terminal has, and without backgrounds, which rich's own have.
_MARKDOWN: Final = {
    "markdown.h1": "bold underline",
    "markdown.h2": "bold underline",
    "markdown.h3": "bold",
    "markdown.h4": "bold italic",
    "markdown.h5": "italic",
    "markdown.h6": "italic",
    "markdown.code": "cyan",
    "markdown.code_info": "dim",
    "markdown.link": "underline",
    "markdown.link_url": "dim",
    "markdown.block_quote": "italic",
    "markdown.item.bullet": "bold",
    "markdown.item.number": "bold",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
}
STYLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bar": "dim",
        "bar.model": "bold",
        "bar.good": "green",
        "bar.busy": "cyan",
        "bar.warn": "yellow",
        "bar.critical": "bold red",
        "message": "bold",
        "reasoning": "dim italic",
        "notice": "dim",
        "error": "red",
        **_MARKDOWN,
    }
)
"""rich style by name, of the default theme, which suits any background."""

_DARK: Final = {
    **STYLES,
    "bar": "white",
    "bar.model": "bold bright_white",
    "bar.good": "bright_green",
    "bar.busy": "bright_cyan",
    "bar.warn": "bright_yellow",
    "bar.critical": "bold bright_red",
    "message": "bold bright_white",
    "reasoning": "italic white",
    "notice": "white",
    "error": "bright_red",
    "markdown.code": "bright_cyan",
}
_LIGHT: Final = {
    **STYLES,
    "bar": "bright_black",
    "bar.model": "bold black",
    "bar.busy": "blue",
    "bar.warn": "magenta",
    "message": "bold blue",
    "reasoning": "italic bright_black",
    "notice": "bright_black",
    "markdown.code": "blue",
}
_PLAIN: Final = {
    **STYLES,
    "bar.good": "none",
    "bar.busy": "none",
    "bar.warn": "bold",
    "bar.critical": "bold",
    "error": "bold",
    "markdown.code": "bold",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """A style for every name, and the theme that colours code: one of pygments' or rich's."""

    styles: Mapping[str, str]
    code_theme: str

    def with_style(self, name: str, style: str) -> "Theme":
        """Return the theme with one style changed.

        Raises:
            SettingError: no style has that name, or rich cannot read it.
        """
        from rich.errors import StyleSyntaxError
        from rich.style import Style

        if name not in self.styles:
            close = get_close_matches(name, self.styles, n=1)
            advice = f"did you mean `{close[0]}`?" if close else f"give one of {', '.join(self.styles)}"
            raise SettingError(f"unknown style `{name}`: {advice}")
        try:
            Style.parse(style)
        except StyleSyntaxError as error:
            raise SettingError(
                f"style {name} is {style!r}: give colours and words, as in `bold red`"
            ) from error
        return replace(self, styles={**self.styles, name: style})


THEMES: Final[Mapping[str, Theme]] = MappingProxyType(
    {
        "default": Theme(STYLES, "ansi_light"),
        "dark": Theme(_DARK, "ansi_dark"),
        "light": Theme(_LIGHT, "ansi_light"),
        "plain": Theme(_PLAIN, "bw"),
    }
)
"""Every theme by name."""


def find_theme(name: str) -> Theme:
    """Return the theme called `name`.

    Raises:
        SettingError: there is none.
    """
    if name not in THEMES:
        raise SettingError(f"theme is {name!r}: give one of {', '.join(THEMES)}")
    return THEMES[name]
