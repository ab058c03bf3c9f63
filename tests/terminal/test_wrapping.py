"""Styled text breaks where plain text does, and keeps its styles."""

import pytest
from rich.text import Text

from turbospark_chat.terminal.wrapping import wrap


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("one\n\ntwo ", ["one", "", "two"]),
        ("one\n", ["one", ""]),
        ("  a  bb  cc", ["  a  bb", "cc"]),
        ("aa aa\naa", ["aa aa", "aa"]),
        ("中文中文中文", ["中文中文", "中文"]),
    ],
)
def test_rows_are_those_of_plain_text(text, rows):  # H11
    assert [row.plain for row in wrap(Text(text), width=8)] == rows


def test_styles_go_on_in_the_next_row():
    text = Text("one two three")
    text.stylize("bold", 4, 9)
    rows = wrap(text, width=8)
    assert [[(span.start, span.end) for span in row.spans] for row in rows] == [[(4, 7)], [(0, 1)]]
