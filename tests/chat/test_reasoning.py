"""Thinking is told from the answer wherever the tags are cut, and nothing but tags and space beside them is lost."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turbospark_chat.chat.reasoning import (
    KNOWN_TAGS,
    Piece,
    ReasoningSplitter,
    ReasoningTags,
    find_tags,
    join,
    split,
)
from turbospark_chat.errors import SettingError

TAGS = ReasoningTags("<think>", "</think>")


def stream(
    pushes: list[str], *, tags: ReasoningTags | None = TAGS, inside: bool = False
) -> list[list[Piece]]:
    """What each push gave, and what the end gave."""
    splitter = ReasoningSplitter(tags, inside=inside)
    return [*map(splitter.push, pushes), splitter.finish()]


def told_apart(pushes: list[str], *, inside: bool = False) -> tuple[str, str]:
    pieces = sum(stream(pushes, inside=inside), [])
    return join(pieces, is_reasoning=True), join(pieces, is_reasoning=False)


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "answer"),
    [
        pytest.param("<think>why</think>so", False, "why", "so", id="T25 a thought and an answer"),
        pytest.param(
            "<think>\nwhy\n</think>\n\nso\n", False, "why", "so\n", id="space beside tags is no text"
        ),
        pytest.param(" \n<think>why</think>so", False, "why", "so", id="space before the thought"),
        pytest.param("so", False, "", "so", id="no thought"),
        pytest.param(" \n so", False, "", " \n so", id="space before an answer is the answer's"),
        pytest.param("why</think>so", True, "why", "so", id="T74 opened by the prompt"),
        pytest.param("\nwhy\n\n</think>\nso", True, "why", "so", id="T74 space after the prompt's tag"),
        pytest.param("</think>so", True, "", "so", id="T74 closed at once"),
        pytest.param("<think></think>so", False, "", "so", id="7 an empty thought"),
        pytest.param("<think>why", False, "why", "", id="69 cut inside the thought"),
        pytest.param("<think>why </th", False, "why </th", "", id="C9 cut inside the closing tag"),
        pytest.param("<thi", False, "", "<thi", id="C9 cut inside the opening tag"),
        pytest.param("  ", False, "", "  ", id="C9 nothing but space"),
        pytest.param("<think>", False, "", "", id="cut after the opening tag"),
        pytest.param(
            "a <think>b</think>", False, "", "a <think>b</think>", id="tags in an answer are its text"
        ),
        pytest.param(
            "<think>a</think>b</think>c", False, "a", "b</think>c", id="a second closing tag is text"
        ),
        pytest.param("<think>a</think>\n<think>b</think>c", False, "ab", "c", id="one thought after another"),
        pytest.param(
            "<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>", id="T25 not in an answer"
        ),
        pytest.param("a</think><think>b", True, "ab", "", id="C9 cut inside the second thought"),
        pytest.param("<think>a<think>b</think>c", False, "a<think>b", "c", id="an opening tag in a thought"),
        pytest.param("<thinking>a</thinking>b", False, "", "<thinking>a</thinking>b", id="T75 unknown tags"),
        pytest.param("<think>a</thin></think>b", False, "a</thin>", "b", id="nearly a closing tag"),
        pytest.param("<think>a<</think>b", False, "a<", "b", id="a bracket before the closing tag"),
        pytest.param("", False, "", "", id="nothing"),
        pytest.param("", True, "", "", id="nothing, opened by the prompt"),
    ],
)
def test_a_reply_is_told_apart_wherever_it_is_cut(
    text: str, inside: bool, reasoning: str, answer: str
) -> None:
    expected = (reasoning, answer)
    assert split(text, TAGS, inside=inside) == expected
    assert told_apart(list(text), inside=inside) == expected
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pushes = [text[:first], text[first:second], text[second:]]
            assert told_apart(pushes, inside=inside) == expected, pushes


REPLIES = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "</th", "nk>", "<", " ", "\n", "why", "é"])
)


@given(REPLIES, st.booleans())
@example(["<think>", "<thi", "</think>", "<think>", "nk>"], False)
def test_cuts_make_no_difference_and_only_tags_and_space_are_lost(parts: list[str], inside: bool) -> None:
    text = "".join(parts)
    reasoning, answer = told_apart(parts, inside=inside)
    assert (reasoning, answer) == split(text, TAGS, inside=inside) == told_apart(list(text), inside=inside)

    def bare(text: str) -> str:
        while (barer := re.sub(r"\s|</?think>", "", text)) != text:  # what is left may make a tag together
            text = barer
        return text

    assert bare(reasoning + answer) == bare(text)


@given(REPLIES)
def test_without_tags_everything_is_the_answer_at_once(parts: list[str]) -> None:
    shown = [join(pieces, is_reasoning=False) for pieces in stream(parts, tags=None)]
    assert shown == [*parts, ""]


@pytest.mark.parametrize(
    ("pushes", "shown"),
    [
        pytest.param(["so", " it", " is"], ["so", " it", " is", ""], id="C9 an answer as it comes"),
        pytest.param(["<b>", "x"], ["<b>", "x", ""], id="C9 no tag any more"),
        pytest.param(["<t", "a"], ["", "<ta", ""], id="C9 a tag no longer"),
        pytest.param(["<think>", "a < b", " c"], ["", "a < b", " c", ""], id="C9 a thought as it comes"),
        pytest.param(["<think>a ", "b"], ["a", " b", ""], id="space waits for what follows it"),
        pytest.param(["<think>a</", "th>"], ["a", "</th>", ""], id="C9 only what may still be the tag waits"),
        pytest.param(["<think>a</think>", " ", " b "], ["a", "", "b ", ""], id="space after the tag"),
    ],
)
def test_text_waits_only_while_it_may_be_a_tag(pushes: list[str], shown: list[str]) -> None:
    assert ["".join(piece.text for piece in pieces) for pieces in stream(pushes)] == shown


def test_no_piece_is_empty() -> None:
    for pieces in stream(list(" <think> a </think> b ")):
        assert all(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        *[(f"{{{{ content.split('{closing}') }}}}", (opening, closing)) for opening, closing in KNOWN_TAGS],
        ("{{ '<think>' }}", None),
        ("{{ content }}", None),
        ("", None),
    ],
)
def test_the_tags_are_those_whose_end_the_template_mentions(
    template: str, tags: tuple[str, str] | None
) -> None:
    assert find_tags(template) == (ReasoningTags(*tags) if tags else None)


@pytest.mark.parametrize("tag", ["", " ", "<a b>", " <a>", "<a>\n"])
def test_a_tag_without_text_or_with_space_in_it_is_refused(tag: str) -> None:  # T75
    with pytest.raises(SettingError, match="think_tags"):
        ReasoningTags("<a>", tag)
    with pytest.raises(SettingError, match="think_tags"):
        ReasoningTags(tag, "</a>")


@pytest.mark.parametrize(
    ("text", "inside", "is_thinking"),
    [
        ("", False, False),
        ("", True, True),
        ("<thi", False, False),
        ("<think>", False, True),
        ("<think>a</think", False, True),
        ("<think>a</think>", False, False),
        ("a</think>", True, False),
        ("a <think>", False, False),
    ],
)
def test_it_is_thinking_from_the_opening_tag_to_the_closing(
    text: str, inside: bool, is_thinking: bool
) -> None:
    splitter = ReasoningSplitter(TAGS, inside=inside)
    splitter.push(text)
    assert splitter.is_thinking == is_thinking
