"""Every theme has every style, each of which rich can draw; some have no colours."""

import pytest
from pygments.styles import get_style_by_name
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax

from turbospark_chat.errors import SettingError
from turbospark_chat.terminal.theme import STYLES, THEMES, Theme, find_theme

every_theme = pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)


@every_theme
def test_a_theme_has_a_style_for_every_name_that_rich_can_draw(theme: Theme) -> None:
    assert list(theme.styles) == list(STYLES)
    for style in theme.styles.values():
        Style.parse(style)


@every_theme
def test_code_has_colours_that_are_there(theme: Theme) -> None:
    if not isinstance(Syntax.get_theme(theme.code_theme), ANSISyntaxTheme):
        get_style_by_name(theme.code_theme)  # rich would take another without a word


def test_plain_has_no_colours() -> None:
    for style in map(Style.parse, THEMES["plain"].styles.values()):
        assert style.color is None and style.bgcolor is None


def test_the_default_has_only_colours_that_suit_the_terminals_background() -> None:
    for style in map(Style.parse, STYLES.values()):
        assert style.bgcolor is None
        assert style.color is None or style.color.number in range(1, 7)


@pytest.mark.parametrize(("name", "background"), [("dark", 0), ("light", 255)])
def test_text_stands_out_from_the_background(name: str, background: int) -> None:
    for style in map(Style.parse, THEMES[name].styles.values()):
        if style.color is not None:
            red, green, blue = style.color.get_truecolor()
            brightness = 0.299 * red + 0.587 * green + 0.114 * blue
            assert abs(brightness - background) > 60


def test_a_theme_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingError, match=r"theme is 'drak': give one of default, dark, light, plain"):
        find_theme("drak")


def test_one_style_can_be_changed() -> None:
    changed = find_theme("dark").with_style("error", "bold blue")
    assert changed.styles == {**THEMES["dark"].styles, "error": "bold blue"}
    assert changed.code_theme == THEMES["dark"].code_theme


@pytest.mark.parametrize(
    ("name", "style", "problem"),
    [
        ("eror", "red", "unknown style `eror`: did you mean `error`"),
        ("zzz", "red", "unknown style `zzz`: give one of bar"),
        ("error", "rde", "style error is 'rde'"),
        ("error", "on", "style error is 'on'"),
    ],
)
def test_a_style_that_is_none_is_refused(name: str, style: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        find_theme("default").with_style(name, style)
