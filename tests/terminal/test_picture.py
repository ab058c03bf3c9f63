"""Pictures of the terminal: valid, the same for the same rows, self-contained, and every character in its cell."""

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, split_graphemes

from turbospark_chat.terminal.picture import draw_picture

SVG = "{http://www.w3.org/2000/svg}"
CELL = 12.2  # the width of a cell, and
ROW = 24.4  # the height of a row, in the picture's units

graphemes = st.sampled_from(
    [
        "a",
        "é",
        "e\u0301",
        " ",
        "漢",
        "한",
        "👩",
        "👨‍👩‍👧",
        "❤️",
        "<",
        "&",
        "]]>",
        "│",
        "\x1b[1m",
        "\x1b[31;44m",
    ]
)


def parse(rows: str, *, title: str = "T", width: int = 80) -> Element:
    return ElementTree.fromstring(draw_picture(rows, title=title, width=width))


def texts(picture: Element) -> list[Element]:
    return [text for text in picture.iter(f"{SVG}text") if "textLength" in text.attrib]


def said(text: Element) -> str:
    return (text.text or "").replace("\xa0", " ")


def rows_of(picture: Element, width: int) -> list[str]:
    """Return the rows as they stand in the picture, read off the places of its texts."""
    rows: dict[int, str] = {}
    for text in sorted(texts(picture), key=lambda text: (float(text.get("y", 0)), float(text.get("x", 0)))):
        row = round((float(text.get("y", 0)) - 20) / ROW)
        column = round(float(text.get("x", 0)) / CELL)
        before = rows.get(row, "")
        assert cell_len(before) <= column, "texts overlap"
        assert float(text.get("textLength", 0)) == pytest.approx(cell_len(said(text)) * CELL)
        rows[row] = before + " " * (column - cell_len(before)) + said(text)
        assert cell_len(rows[row]) <= width
    return [rows.get(row, "") for row in range(max(rows, default=-1) + 1)]


def plain(row: str) -> str:
    return row.replace("\x1b[1m", "").replace("\x1b[31;44m", "").rstrip(" ")


@given(st.lists(st.lists(graphemes, max_size=12).map("".join), min_size=1, max_size=4))
def test_every_character_stands_in_its_cell(rows: list[str]) -> None:
    drawn = rows_of(parse("\n".join(rows), width=40), 40)
    expected = [plain(row) for row in rows]
    assert [row.rstrip(" ") for row in drawn] + [""] * (len(rows) - len(drawn)) == expected


@given(st.lists(graphemes, max_size=30).map("".join))
def test_wide_and_narrow_characters_are_texts_of_their_own(row: str) -> None:
    for text in texts(parse(row)):
        spans, _ = split_graphemes(said(text))
        assert len({width > 1 for _, _, width in spans}) == 1


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=10), st.integers(-1, 20))
def test_a_picture_of_anything_is_valid_and_can_be_written(rows: str, title: str, width: int) -> None:
    svg = draw_picture(rows, title=title, width=width)
    svg.encode("utf-8")
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("rows", "drawn"),
    [
        ("a\x00\x1b{b\x9bc\ud800d\ufffe", "a\ufffd\ufffd{b\ufffdc\ufffdd\ufffd"),
        ("\x1b[2J\x1b[5;5Hhome", "home"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\tb", "a       b"),
        ("a  b", "a  b"),
    ],
    ids=["no XML", "cursor codes", "link", "tab", "spaces"],
)
def test_what_is_no_text_is_not_drawn(rows: str, drawn: str) -> None:
    assert rows_of(parse(rows), 80) == [drawn]


def test_a_row_too_wide_goes_on_in_the_next() -> None:
    assert rows_of(parse("x" * 25 + "漢漢", width=10), 10) == ["x" * 10, "x" * 10, "x" * 5 + "漢漢"]


def test_a_picture_is_as_high_as_its_rows() -> None:
    heights = [float(parse("a\n" * n + "a").get("height", 0)) for n in range(3)]
    assert heights[1] - heights[0] == pytest.approx(ROW)
    assert heights[2] - heights[1] == pytest.approx(ROW)


def test_the_same_rows_give_the_same_bytes_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "\x1b[1;32mok\x1b[0m 漢 \x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\"
    first = draw_picture(rows, title="T", width=40)
    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "7", "COLORTERM": ""}.items():
        monkeypatch.setenv(name, value)
    assert draw_picture(rows, title="T", width=40) == first
    assert draw_picture(rows + "!", title="T", width=40).split("-matrix")[0] != first.split("-matrix")[0]


def test_nothing_in_a_picture_is_fetched() -> None:
    svg = draw_picture("\x1b[1mbold\x1b[0m", title="T", width=40)
    assert svg.replace('xmlns="http://www.w3.org/2000/svg"', "").count("http") == 0
    assert not [
        word for word in ("url(", "@font-face", "@import", "<script", "<image", "href") if word in svg
    ]
    assert "monospace" in svg


def test_colours_and_backgrounds_are_drawn_where_they_were() -> None:
    picture = parse("ab\x1b[31;44mred 漢\x1b[0m")
    (red, wide) = [text for text in texts(picture) if said(text) != "ab"]
    assert red.get("class") != texts(picture)[0].get("class")
    assert (said(red), said(wide)) == ("red ", "漢")
    backgrounds = [r for r in picture.iter(f"{SVG}rect") if r.get("shape-rendering")]
    assert [(float(r.get("x", 0)) / CELL, float(r.get("width", 0)) / CELL) for r in backgrounds] == [
        pytest.approx((2, 4)),
        pytest.approx((6, 2)),
    ]


def test_the_title_is_one_line_and_is_heard_too() -> None:
    picture = parse("a", title='a <b>\n& "c"')
    assert picture.get("aria-label") == 'a <b> & "c"'
    assert [said(t) for t in picture.iter(f"{SVG}text") if "textLength" not in t.attrib] == ['a <b> & "c"']
