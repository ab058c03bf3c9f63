"""Rows of cells as people read them."""

import pytest
from rich.cells import cell_len

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.rows import grid


def lines(rows, width, **how):
    drawn = Painter(color=False).render(grid(rows, **how), width=width)
    return [line.rstrip() for line in drawn.split("\n")]


def test_columns_are_aligned_by_cells():
    assert lines([("中文", "x"), ("a", "y")], 40) == ["中文  x", "a     y"]


def test_numbers_are_set_to_the_right():
    assert lines([("a", "9"), ("b", "10")], 40, right={1}) == ["a   9", "b  10"]


def test_the_widest_column_wraps_and_nothing_is_wider_than_the_screen():
    drawn = lines([("name", "several words that do not fit")], 20)
    assert drawn == ["name  several words", "      that do not", "      fit"]
    assert max(map(cell_len, drawn)) <= 20


@pytest.mark.parametrize("width", [12, 20, 30, 60])
def test_on_a_narrow_screen_no_letter_is_lost(width):
    row = ("--max-thinking-tokens", "performance", "some words here and there 中文")
    drawn = lines([row], width)
    assert max(map(cell_len, drawn)) <= width
    assert sorted("".join(drawn).replace(" ", "")) == sorted("".join(row).replace(" ", ""))


def test_a_cell_cannot_drive_the_terminal():
    assert "\x1b" not in "".join(lines([("\x1b[31ma", "\x07b")], 40))
