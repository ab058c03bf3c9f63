"""Markdown's blocks: the ones that markdown-it finds in the whole text, however it was cut."""

import re
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from turbospark_chat.terminal.markdown_blocks import MOST_UNDECIDED, BlockKind, BlockSplitter

KINDS = {"paragraph_open": "PARAGRAPH", "heading_open": "HEADING", "hr": "RULE", "fence": "CODE"} | {
    "code_block": "CODE",
    "table_open": "TABLE",
}

STARTS = [
    "",
    "",
    "- ",
    "1. ",
    "2. ",
    "10) ",
    "> ",
    ">",
    "  ",
    "   ",
    "    ",
    "\t",
    "* ",
    "-   ",
    "-\t",
    "+     ",
]
CONTENTS = [
    "", "word", "two words", "# head", "#", "## x ##", "#no", "---", "* * *", "___", "===", "-", "1.", "7)", "```",
    "```py", "~~~", "````", "``` a`b", "| a | b |", "|---|:-:|", "a|b", "-|-", "| 1 |", "|-|", "<b>", "[x]: y",
]  # fmt: skip
markdown_lines = st.lists(
    st.builds(lambda starts, content: "".join(starts) + content, st.lists(st.sampled_from(STARTS), max_size=3),
              st.sampled_from(CONTENTS)),
    max_size=10,
)  # fmt: skip
markdown = markdown_lines.map("\n".join)


def split(text, cuts=()):
    """Return the blocks of a text that is pushed in the pieces between `cuts`."""
    splitter = BlockSplitter()
    edges = [0, *sorted(cuts), len(text)]
    blocks = []
    for start, end in zip(edges, edges[1:], strict=False):
        blocks += splitter.push(text[start:end])
    return blocks + splitter.finish()


def outline(blocks):
    """Return kind, containers and text of each leaf; lines of the same code are one."""
    leaves = []
    for block in blocks:
        path = "".join(container.marker or ">" for container in block.containers)
        if not block.is_start:
            leaves[-1][2] += "\n" + block.text
        elif block.kind is not BlockKind.PARAGRAPH or block.text or block.n_begun:
            leaves.append([block.kind.name, path, block.text])
    return [
        (kind, path, flat(text) if kind in ("PARAGRAPH", "HEADING") else text) for kind, path, text in leaves
    ]


def flat(text):
    """Return a paragraph's lines, white space aside, most of which is nothing in Markdown."""
    return "\n".join("".join(line.split()) for line in text.strip().split("\n"))


def peers_outline(text):
    """Return the same as markdown-it finds it."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("reference")
    leaves, path, has_leaf, in_table = [], [], True, False
    for token in parser.parse(text):
        if token.type in ("list_item_open", "blockquote_open"):
            path.append((token.info + token.markup) if token.type == "list_item_open" else ">")
            has_leaf = False
        elif token.type in ("list_item_close", "blockquote_close"):
            if not has_leaf:
                leaves.append(("PARAGRAPH", "".join(path), ""))
            path.pop()
            has_leaf = True
        elif token.type == "table_close":
            in_table = False
        elif token.type in KINDS and not in_table:
            leaves.append((KINDS[token.type], "".join(path), token.content.removesuffix("\n")))
            has_leaf, in_table = True, token.type == "table_open"
        elif token.type == "inline" and not in_table:
            kind, where, _ = leaves[-1]
            leaves[-1] = (kind, where, flat(token.content))
    return leaves


def comparable(leaves):
    """Leave out what is written in another way: the rows of a table, the tabs within code."""
    return [
        (kind, path, "".join(text.split()) if kind == "CODE" else None if kind == "TABLE" else text)
        for kind, path, text in leaves
    ]


def is_disputed(text):
    """Whether markdown-it departs from CommonMark, or says nothing clear, in what a text is made of.

    It takes a list item for a table's head, and a mark behind four spaces for one where a paragraph goes on.
    """
    has_container = re.search(r"^\s*([-+*>]|\d+[.)])", text, re.M)
    return has_container and ("|" in text or re.search(r"^(\t| {1,3}\t| {4})\s*[^\sa-z]", text, re.M))


@given(markdown)
@example("> a\nlazy\n> > b\n> lazy\n- c\nlazy\n\n  d")
@example("- a\n  ```\n- not an item\n  ```\n- b")
@example("text\n2. no list\n1. list\n\t- nested\n\n\t  of it")
def test_blocks_are_those_of_commonmark(text):
    assume(not is_disputed(text))
    assert comparable(outline(split(text))) == comparable(peers_outline(text))


@given(markdown | st.text(alphabet="ab \t\n-*>`|#1.=~"), st.data())
def test_any_cut_gives_the_same_blocks(text, data):
    cuts = data.draw(st.sets(st.integers(0, len(text))))
    assert described(split(text, cuts)) == described(split(text)) == described(split(text, range(len(text))))


def described(blocks):
    return [(b.kind, b.text, [c.marker for c in b.containers], b.n_begun, b.follows_blank) for b in blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# one #\ntwo", [("HEADING", "", "one"), ("PARAGRAPH", "", "two")]),
        ("one\ntwo\n===", [("HEADING", "", "one\ntwo")]),
        ("7. a\n8. b\n  c", [("PARAGRAPH", "7.", "a"), ("PARAGRAPH", "8.", "b\nc")]),
        ("- a\n  - b\n\n  c", [("PARAGRAPH", "-", "a"), ("PARAGRAPH", "--", "b"), ("PARAGRAPH", "-", "c")]),
        ("~~~~\n~~~\n```\n~~~~~\nx", [("CODE", "", "~~~\n```"), ("PARAGRAPH", "", "x")]),
        ("```py\n\na\n", [("CODE", "", "\na")]),
        ("   ```\n     a\n  b\n   ```", [("CODE", "", "  a\nb")]),
        ("> a\n    - b", [("PARAGRAPH", ">", "a\n-b")]),
        ("    a\n\n    b\n\nc", [("CODE", "", "a\n\nb"), ("PARAGRAPH", "", "c")]),
        ("text\na|b\n-|-\n1|2\n# h", [("PARAGRAPH", "", "text"), ("TABLE", "", "a|b\n-|-\n1|2"), ("HEADING", "", "h")]),
        ("| a |\n|---|---|", [("PARAGRAPH", "", "|a|\n|---|---|")]),
        ("***\n-\n- -", [("RULE", "", ""), ("PARAGRAPH", "-", ""), ("PARAGRAPH", "--", "")]),
        ("<div>\n<p>\n\n[a]: b", [("PARAGRAPH", "", "<div>\n<p>"), ("PARAGRAPH", "", "[a]:b")]),
    ],
    ids=["hashes", "underlined", "numbers-stay", "nested", "tildes", "unclosed", "indented-fence", "lazy", "indented",
         "table", "no-table", "rules-and-empty-items", "html-and-definitions-are-text"],
)  # fmt: skip
def test_text_becomes_blocks(text, expected):
    assert outline(split(text)) == expected


def test_a_block_comes_out_once_it_has_ended():
    splitter = BlockSplitter()
    counts = [len(splitter.push(piece)) for piece in ("# one", "\n", "two\n", "\n", "```\n", "x", "\n")]
    assert counts == [0, 1, 0, 1, 0, 0, 1]


def test_the_preview_is_what_is_open_and_changes_nothing():
    splitter = BlockSplitter()
    splitter.push("# one\n- two\n  th")
    assert [outline(splitter.preview()) for _ in range(2)] == [[("PARAGRAPH", "-", "two\nth")]] * 2
    assert outline(splitter.push("ree") + splitter.finish()) == [("PARAGRAPH", "-", "two\nthree")]


@pytest.mark.parametrize("marks", ["-", "==", "12", "3.", "``", "|", "> "])
def test_the_preview_waits_for_what_marks_will_make(marks):
    splitter = BlockSplitter()
    splitter.push("text\n" + marks)
    assert outline(splitter.preview()) == [("PARAGRAPH", "", "text")]


def test_a_table_gives_way_between_rows_and_goes_on_under_its_head():
    splitter = BlockSplitter()
    splitter.push("|h|\n|-|\n|1|\n|2|\n|3")
    blocks = splitter.give_way() + splitter.push("|\n|4|\n") + splitter.finish()
    assert [block.text for block in blocks] == ["|h|\n|-|\n|1|\n|2|", "|h|\n|-|\n|3|\n|4|"]


def test_a_table_that_gave_way_and_ends_is_not_shown_again():
    splitter = BlockSplitter()
    splitter.push("|h|\n|-|\n|1|\n")
    assert [len(splitter.give_way()), len(splitter.finish())] == [1, 0]


@pytest.mark.parametrize("start", ["word ", "# word ", "- word ", "> word ", "| word "])
def test_a_line_that_gives_way_goes_on_as_plain_text(start):
    splitter = BlockSplitter()
    splitter.push(start + "x" * MOST_UNDECIDED)
    blocks = splitter.give_way()
    assert {block.kind for block in blocks} == {BlockKind.PLAIN}
    blocks += splitter.push(" more") + splitter.push("\n\nend") + splitter.finish()
    text = "".join(block.text for block in blocks if block.kind is BlockKind.PLAIN)
    assert text.strip().endswith("word " + "x" * MOST_UNDECIDED + " more")
    assert [block.text for block in blocks[-1:]] == ["end"]


@pytest.mark.parametrize("unit", ["word ", "- a\n", "> ", "```\n", "a\n", "| a ", "    a\n\n", "*", "1. "])
def test_cost_is_linear_in_the_text(unit):
    text = unit * (40_000 // len(unit))
    splitter = BlockSplitter()
    began = time.thread_time()
    for start in range(0, len(text), 4):
        splitter.push(text[start : start + 4])
    splitter.finish()
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize("text", ["one\n\ntwo", "- one\n\n- two", "    one\n\ntwo", "```\none\n```\n\ntwo"])
def test_a_blank_line_before_a_block_is_told(text):
    assert [block.follows_blank for block in split(text)] == [False, True]
    assert [block.follows_blank for block in split(text.replace("\n\n", "\n"))][0] is False
