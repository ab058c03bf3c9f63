"""Rows of a stream: as wide as the terminal shows them, with nothing lost, however the text was cut."""

import time
from unicodedata import east_asian_width

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.terminal.live_text import LiveText

FAMILY = "👨\u200d👩\u200d👧"
CELLS = {
    "a": 1, "b": 1, "ö": 1, "e\u0301": 1, " ": 1, "中": 2, "，": 2, "👍🏽": 2, "🇩🇪": 2, "🇫🇷": 2, "1\ufe0f\u20e3": 2,
    "➡": 1, "➡\ufe0f": 2, FAMILY: 2,
}  # fmt: skip
CHARACTERS = sorted(set("".join(CELLS)) | {"\t", "\n", "한", "\u200b"})

CHINESE = (
    "人工智能（Artificial Intelligence，缩写为 AI）是计算机科学的一个分支，它企图了解智能的实质，并生产出一种新的"
    "能以人类智能相似的方式做出反应的智能机器。该领域的研究包括机器人、语言识别、图像识别、自然语言处理和专家系统等。\n"
    "日本語とＡＢＣ、한국어와 함께：ハンカク ﾊﾝｶｸ も。"
)


def rows(text, width, *, cuts=()):
    """Return the rows of a text, pushed in the pieces between `cuts`."""
    live = LiveText()
    edges = [0, *sorted(cuts), len(text)]
    pushed = "".join(
        live.push(text[start:end], width=width) for start, end in zip(edges, edges[1:], strict=False)
    )
    return [*pushed.split("\n")[:-1], live.finish()]


def each(text):
    """Cut before every code point."""
    return range(1, len(text))


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        pytest.param("ab中文中文中文", 10, ["ab中文中文", "中文"], id="H11-wide-to-the-last-column"),
        pytest.param("abc中文中文中文", 10, ["abc中文中", "文中文"], id="H11-wide-at-the-last-column-moves"),
        pytest.param("one two three", 8, ["one two", "three"], id="at-the-last-space"),
        pytest.param("one two", 7, ["one two"], id="to-the-last-column"),
        pytest.param("one  two", 4, ["one", "two"], id="spaces-at-the-break-go"),
        pytest.param("one two ", 7, ["one two"], id="a-space-past-the-margin-begins-no-row"),
        pytest.param("abcdefghij", 4, ["abcd", "efgh", "ij"], id="within-a-word-wider-than-the-row"),
        pytest.param("ab cdefghij", 4, ["ab", "cdef", "ghij"], id="such-a-word-begins-a-row"),
        pytest.param("    if abc", 8, ["    if", "abc"], id="indentation-stays"),
        pytest.param("    abcdef", 8, ["    abcd", "ef"], id="indentation-is-no-place-to-break"),
        pytest.param("a\n\n\nb", 8, ["a", "", "", "b"], id="blank-lines-stay"),
        pytest.param("用 Python 写的程序", 14, ["用 Python 写的", "程序"], id="after-a-wide-character"),
        pytest.param("ab hello中x", 9, ["ab hello", "中x"], id="before-a-wide-character"),
        pytest.param("a\tb\tc", 20, ["a       b       c"], id="tabs-are-columns-of-eight"),
        pytest.param("中\tb", 20, ["中      b"], id="tabs-count-cells"),
        pytest.param("0123456789\tx", 8, ["01234567", "89", "x"], id="tabs-count-from-the-row"),
        pytest.param(f"{FAMILY} x", 4, [f"{FAMILY} x"], id="B15-family-emoji-takes-two-columns"),
        pytest.param(f"ab{FAMILY}", 3, ["ab", FAMILY], id="B15-and-not-one"),
        pytest.param("ab➡", 3, ["ab➡"], id="B15-arrow-takes-one-column"),
        pytest.param("ab➡\ufe0f", 3, ["ab", "➡\ufe0f"], id="B15-arrow-as-emoji-takes-two"),
        pytest.param("ab🇩🇪", 3, ["ab", "🇩🇪"], id="T46-flags-stay-whole"),
        pytest.param("🇩🇪🇫🇷", 2, ["🇩🇪", "🇫🇷"], id="T46-flags-are-pairs"),
        pytest.param("cafe\u0301s", 4, ["cafe\u0301", "s"], id="combining-marks-take-no-column"),
    ],
)
def test_a_line_becomes_rows(text, width, expected):
    assert rows(text, width) == expected
    assert rows(text, width, cuts=each(text)) == expected


@pytest.mark.parametrize("width", [1, 0, -1])
@pytest.mark.parametrize("text", ["ab中文 c", FAMILY + "x", "🇩🇪🇫🇷", "\u200d中"])
def test_a_width_too_small_for_a_character_neither_hangs_nor_loses_one(text, width):  # H11
    split = rows(text, width, cuts=each(text))
    assert "".join(split) == text.replace(" ", "")
    assert FAMILY not in text or FAMILY in split


@pytest.mark.parametrize("width", [40, 17, 2])
def test_chinese_fits_the_columns_and_loses_no_character(width):  # T27
    split = rows(CHINESE, width, cuts=each(CHINESE))
    assert max(sum(2 if east_asian_width(c) in "WF" else 1 for c in row) for row in split) <= width
    assert "".join(split).replace(" ", "") == "".join(CHINESE.split())


graphemes = st.lists(st.sampled_from(sorted(CELLS)), max_size=40)
widths = st.integers(1, 12)


@given(st.lists(st.sampled_from(CHARACTERS), max_size=40).map("".join), widths, st.data())
def test_any_cut_gives_the_same_rows(text, width, data):
    cuts = data.draw(st.sets(st.integers(0, len(text))))
    assert rows(text, width, cuts=cuts) == rows(text, width, cuts=each(text)) == rows(text, width)


@given(graphemes, widths)
def test_only_spaces_at_a_break_are_lost(pieces, width):
    text = "".join(pieces)
    position = 0
    for row in rows(text, width):
        start = text.index(row, position)  # all of it, in one piece
        assert not text[position:start].strip(" ")
        position = start + len(row)
    assert not text[position:].strip(" ")


@given(graphemes, widths)
def test_rows_hold_whole_graphemes_and_are_no_wider_than_the_screen(pieces, width):
    left = [piece for piece in pieces if piece != " "]
    for row in rows("".join(pieces), width):
        rest, cells = row.rstrip(" "), 0
        while rest:
            piece = " " if rest.startswith(" ") else left.pop(0)
            assert rest.startswith(piece)
            rest = rest[len(piece) :]
            cells += CELLS[piece]
        assert cells <= max(width, 2)
    assert not left


def test_what_is_live_is_the_unfinished_row():
    live = LiveText()
    assert [live.push("one two", width=10), live.row] == ["", "one two"]
    assert [live.push(" three", width=10), live.row] == ["one two\n", "three"]
    assert [live.finish(), live.row, live.finish()] == ["three", "", ""]


def test_a_narrower_screen_breaks_what_is_live():  # H11, resize
    live = LiveText()
    live.push("one two three four", width=40)
    assert live.push("!", width=6) == "one\ntwo\nthree\n"
    assert live.row == "four!"


@pytest.mark.parametrize("is_pushed_whole", [True, False], ids=["whole", "by character"])
@pytest.mark.parametrize(
    ("unit", "n_characters"),
    [
        ("x", 100_000),
        ("hello ", 100_000),
        (" ", 20_000),
        ("中", 20_000),
        ("\u0301", 20_000),
        ("\u200d", 20_000),
    ],
    ids=["word", "words", "spaces", "wide", "marks", "joiners"],
)
def test_a_very_long_line_takes_linear_time(unit, n_characters, is_pushed_whole):
    text = (unit * n_characters)[:n_characters]
    began = time.thread_time()
    rows(text, 80, cuts=() if is_pushed_whole else each(text))
    assert time.thread_time() - began < 2.0


def test_a_fork_goes_its_own_way():
    live = LiveText()
    live.push("one", width=10)
    fork = live.fork()
    assert fork.push(" two\n", width=10) == "one two\n"
    assert (live.row, fork.row) == ("one", "")
