"""Painting: with escape codes or without any, and never by reading codes into the text."""

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.theme import STYLES


def everything():
    table = Table("a", "b", box=None)
    table.add_row(Text("cell", "error"), "cell")
    return Group(table, *(Text(name, name) for name in STYLES))


def test_without_colour_no_escape_code_leaves(monkeypatch):  # H6
    monkeypatch.setenv("FORCE_COLOR", "1")
    painter = Painter(color=False)
    assert "\x1b" not in painter.render(everything(), width=40)
    assert [painter.style("text", name) for name in STYLES] == ["text"] * len(STYLES)


def test_with_colour_every_style_is_closed_again():
    painter = Painter(color=True)
    for name in STYLES:
        assert painter.style("text", name) == painter.render(Text("text", name), width=40)
        assert painter.style("text", name).endswith("text\x1b[0m")


def test_an_empty_text_needs_no_codes():
    assert Painter(color=True).style("", "error") == ""


@pytest.mark.parametrize(
    "text", ["[/INST]", "[bold]x[/bold]", ":smile:", "[link=file:///x]y[/link]", "1 2 None"]
)
@pytest.mark.parametrize("color", [False, True])
def test_text_is_never_read_as_markup(text, color):
    table = Table.grid()
    table.add_row(text)
    assert Painter(color=color).render(table, width=40).rstrip() == text


@pytest.mark.parametrize("content", ["one", Text("one"), Group("one")])
def test_the_last_newline_is_the_callers(content):
    assert Painter(color=False).render(content, width=40) == "one"


def test_a_table_has_no_last_newline_either():
    table = Table.grid()
    table.add_row("one")
    assert Painter(color=False).render(table, width=40).rstrip(" ") == "one"


@pytest.mark.parametrize("width", [0, -1])
def test_a_screen_of_unknown_width_is_painted_on(width):  # H11
    assert Painter(color=False).render(Text("ab"), width=width) == "a\nb"


@pytest.mark.parametrize("color", [False, True])
def test_rows_end_where_their_text_ends(color):
    table = Table("a", "b", width=30, box=None)
    table.add_row("cell", Text("x  ", "error"))
    painter = Painter(color=color)
    rows = painter.rows(table, width=40) + [painter.row(Text("x  ", "bold"))]
    assert all(row.removesuffix("\x1b[0m").rstrip(" ") == row.removesuffix("\x1b[0m") for row in rows)


def test_a_row_is_painted_as_wide_as_it_is():
    assert Painter(color=False).row(Text("word " * 40)) == ("word " * 40).rstrip()


def test_a_theme_may_say_what_markdown_looks_like():
    assert (
        Painter(color=True, styles={**STYLES, "markdown.h1": "red"}).style("x", "markdown.h1")
        == "\x1b[31mx\x1b[0m"
    )
