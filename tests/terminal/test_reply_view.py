"""A reply on its way to the screen: nothing lost, nothing twice, no row too wide, no escape but colours."""

import re
from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.reply_view import ReplyView

SGR = re.compile(r"\x1b\[[0-9;]*m")
FAMILY = "👨\u200d👩\u200d👧"

STARTS = ["", "", "", "- ", "3. ", "> ", "  ", "    ", "# ", "### ", "\t"]
PIECES = [
    "one", "two *three*", "**four", "`five`", "[six](seven 'eight')", "![nine](ten)", "<b>eleven</b>", "&copy;",
    "中文字", FAMILY, "🇩🇪🇫🇷", "ne\u0301", "~~x~~", "http://a.b", "<http://c.d>", "\\*", "y" * 30, "[r]: u",
    "a\tb", "__", "*",
]  # fmt: skip
LINES = [
    "",
    "",
    "```",
    "```python",
    "```no language",
    "~~~",
    "---",
    "| # | ## |\n|:-:|--:|",
    "|-|",
    "===",
    "print('s')",
]
words = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)
rows = st.lists(st.sampled_from(PIECES), max_size=4).map(lambda cells: "|" + "|".join(cells) + "|")
lines = st.builds(str.__add__, st.lists(st.sampled_from(STARTS), max_size=2).map("".join), words)
markdown = st.lists(lines | rows | st.sampled_from(LINES), max_size=14).map("\n".join)
sizes = st.tuples(st.integers(1, 50), st.integers(1, 12))


def view(*, color=True, is_markdown=True):
    return ReplyView(Painter(color=color), is_markdown=is_markdown)


def shown(text, *, width=40, height=10, **options):
    """Return the finished rows of a reply that came at once, without colours."""
    reply = view(color=False, **options)
    return reply.push(text, width=width, height=height) + reply.finish(width=width)


def letters(text):
    """Return what may neither be lost nor doubled: not digits, which number lists, nor the language of code."""
    return "".join(c for c in SGR.sub("", text) if category(c)[0] in "LM").replace("python", "")


@given(markdown, st.data())
@example("- a\n\n  ```python\n  x\n  ```\n- b", None)
def test_every_letter_comes_once_and_in_order(text, data):
    reply, out, position = view(), "", 0
    while position < len(text):
        step, (width, height) = (data.draw(st.integers(1, 30)), data.draw(sizes)) if data else (1, (20, 5))
        height = height if "|" not in text else 1000  # the head of a table that goes on is repeated
        finished = reply.push(text[position : position + step], width=width, height=height)
        assert not finished or finished.endswith("\n")
        live = reply.live(width=width, height=height)
        assert live.count("\n") < height
        for row in SGR.sub("", finished + live).split("\n"):
            assert cell_len(row) <= max(width, 2)
            assert row == row.rstrip(" ")
        out += finished
        position += step
    out += reply.finish(width=20)
    assert reply.finish(width=20) == ""
    in_order = list if "|" not in text else sorted  # cells stand beside each other
    assert in_order(letters(out)) == in_order(letters(text))
    assert "\x1b" not in SGR.sub("", out)


CONTROLS = "".join(map(chr, [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)])) + "\u202e\u2066"
HOSTILE = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\",
    "\x9b2J",
    "\x9d0;t\x9c",
    "\x90q\x9c",
    CONTROLS,
]


@pytest.mark.parametrize(
    "hostile", HOSTILE, ids=["CSI", "OSC", "link", "C1-CSI", "C1-OSC", "DCS", "every-control"]
)
@pytest.mark.parametrize(
    "place",
    ["{}", "# {}", "- {}", "> {}", "`{}`", "**{}**", "```\n{}\n```", "```python\n'{}' # {}\n```", "```{}\nx\n```",
     "[a](http://{})", "[a](<{}>)", "[a](b '{}')", "![{}]({})", "| {} |\n|-|\n| {} |", "<b {}>", "    {}", "[{}]: {}",
     "{} " + "x" * 900],
)  # fmt: skip
def test_a_reply_cannot_drive_the_terminal_from_anywhere(place, hostile):
    reply = view()
    for character in place.replace("{}", hostile):
        out = reply.push(character, width=30, height=6) + reply.live(width=30, height=6)
        assert harmless(SGR.sub("", out)) == SGR.sub("", out)
    out = reply.finish(width=30)
    assert harmless(SGR.sub("", out)) == SGR.sub("", out)


@pytest.mark.parametrize("code", ["&#27;[2J", "&#x9b;2J", "&#x202e;", "&#155;", "\\\x1b"])
def test_an_entity_hides_no_control(code):
    for text in (code, f"[a]({code})", f"[a](b '{code}')", f"```{code}\nx\n```", f"![a]({code})"):
        out = SGR.sub("", shown(text))
        assert harmless(out) == out


DOCUMENT = """\
# Title
Some *text* with `code`.
Next line.

1. one
2. two
   - nested
     ```
     x = 1

     y
     ```

3. three
> quote
> - item

| a | b |
|---|--:|
| 1 | 22 |
***
end"""

AS_SHOWN = """\
Title

Some text with code.
Next line.

1. one
2. two
   • nested
     x = 1

     y

3. three

▌ quote
▌
▌ • item

a    b
──────
1   22

────────────────────
end
"""


def test_a_document_is_laid_out():  # T40
    assert shown(DOCUMENT, width=20, height=20) == AS_SHOWN.replace("─\nend", "─\n\nend")


@pytest.mark.parametrize("height", [3, 12])
@pytest.mark.parametrize("n", [1, 7])
def test_pieces_and_height_change_no_row_of_short_blocks(height, n):  # T31, T33
    text = DOCUMENT.replace("| 1 | 22 |\n", "")
    text = text.replace("| a | b |\n|---|--:|\n", "").replace("\nNext line.", "")
    reply = view(color=False)
    out = "".join(reply.push(text[i : i + n], width=40, height=height) for i in range(0, len(text), n))
    assert out + reply.finish(width=40) == shown(text, width=40, height=50)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[text](http://x.y/é 'title')", 'text (http://x.y/é "title")'),
        ("![alt](pic.png)", "![alt](pic.png)"),
        ('<b title="*x*">x</b> &amp; <http://a.b>', '<b title="*x*">x</b> &amp; <http://a.b>'),
        ("<div>\n<p>*x*", "<div>\n<p>x"),
        ("[ref]: http://a.b", "[ref]: http://a.b"),
        ("```python\nx = 1\n```", "x = 1"),
        ("```title of it\nx\n```", "title of it\nx"),
        ("```json {file=a}\nx\n```", "json {file=a}\nx"),
        ("|a|\n|-|\n|1|2|", "a\n──────\n1   2"),
        ("5) five", "5) five"),
        ("two  \nlines\\\nthree", "two\nlines\nthree"),
    ],
    ids=["link", "image", "inline-html", "html", "definition", "language", "info", "more-info", "extra-cell",
         "number", "line-breaks"],
)  # fmt: skip
def test_what_has_no_look_of_its_own_stays_text(text, expected):
    assert shown(text).rstrip("\n") == expected


def test_rows_of_a_terminal_too_narrow_for_a_table_are_its_source():
    assert shown("|a|b|c|\n|-|-|-|\n|1|2|3|", width=8) == "|a|b|c|\n|-|-|-|\n|1|2|3|\n"


def test_code_comes_out_line_by_line_in_colours():
    reply = view()
    assert reply.push("```python\ndef f(): pass", width=40, height=10) == ""
    assert SGR.sub("", reply.live(width=40, height=10)) == "def f(): pass"
    finished = reply.push("\n    ret", width=40, height=10)
    assert SGR.sub("", finished) == "def f(): pass\n"
    assert "\x1b[3" in finished  # a colour
    assert not re.search(r"\x1b\[[0-9;]*4[0-8]", finished + reply.live(width=40, height=10))  # no background


@pytest.mark.parametrize("theme", ["ansi_light", "ansi_dark", "monokai", "friendly", "bw"])
def test_no_theme_paints_a_background_or_black_on_black(theme):
    reply = ReplyView(Painter(color=True), is_markdown=True, code_theme=theme)
    out = reply.push("```python\nx = 'a' # b\n\tdef\n```\n", width=40, height=10)
    assert not re.search(r"\x1b\[(?:\d+;)*(?:4[0-9]|10[0-7]|30)[;m]", out)


def test_an_open_block_is_live_in_its_own_look():
    reply = view(color=False)
    assert reply.push("one\n\n- **two** th", width=40, height=5) == "one\n"
    assert reply.live(width=6, height=1) == "  th"
    assert reply.live(width=40, height=5) == "\n• two th"
    assert reply.push("ree", width=40, height=5) == ""
    assert reply.live(width=40, height=5) == "\n• two three"


def test_a_table_higher_than_the_live_region_goes_out_in_parts():
    reply = view(color=False)
    table = "|h|\n|-|\n" + "".join(f"|row {n}|\n" for n in range(30))
    out = "".join(reply.push(character, width=20, height=5) for character in table) + reply.finish(width=20)
    assert re.findall(r"row (\d+)", out) == [str(n) for n in range(30)]
    assert out.split("\n\n")[1].startswith("h\n")


def test_a_paragraph_higher_than_the_live_region_goes_out_row_by_row():  # T34
    reply = view(color=False)
    words = [f"w{n}" for n in range(300)]
    out = ""
    for word in words:
        out += reply.push(word + " ", width=20, height=4)
        assert reply.live(width=20, height=4).count("\n") < 4
    assert out.count("\n") > 50
    assert (out + reply.finish(width=20)).split() == words


def test_a_long_reply_costs_few_bytes():  # T33, T34
    listing = "".join(f"{n}. line of *text* with `code`\n" for n in range(250))
    text = listing + "\n```python\n" + "x = 1  # comment\n" * 250 + "```\n"
    reply = view()
    out = "".join(reply.push(text[i : i + 7], width=80, height=10) for i in range(0, len(text), 7))
    out += reply.finish(width=80)
    assert out.count("\n") == 501
    assert len(out) < 2.5 * len(text)


def test_plain_text_is_shown_as_it_is():
    reply = view(is_markdown=False)
    assert reply.push("# one\n*two*  \n\nthree \x1b", width=40, height=3) == "# one\n*two*\n\n"
    assert reply.live(width=40, height=3) == "three \ufffd"
    assert [reply.finish(width=40), reply.finish(width=40)] == ["three \ufffd\n", ""]
