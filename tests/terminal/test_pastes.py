"""Folded texts: what goes in comes out, whatever it contains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import TransformationInput

from turbospark_chat.terminal import pastes as module
from turbospark_chat.terminal.pastes import LabelProcessor, Pastes, describe, is_long

MARK = "\U00100000"
literal = st.text(st.sampled_from(["a", "\n", "中", MARK, "\U00100001", "\U0010fffd"]), max_size=20)


@pytest.mark.parametrize(
    ("text", "is_folded"),
    [
        ("x" * 1000, False),
        ("x" * 1001, True),
        ("a\n" * 8, False),
        ("\n".join("12345678"), False),
        ("a\n" * 9, True),
    ],
)
def test_what_is_long(text, is_folded):
    assert is_long(text) is is_folded


def test_a_label_says_how_long_it_is():
    assert describe("x\n" * 299 + "y" * 11748, "paste") == "[paste: 300 lines, 12,346 characters]"
    assert describe("x", "text") == "[text: 1 line, 1 character]"


def test_what_was_folded_before_is_folded_again_under_its_label():
    pastes = Pastes()
    attached, pasted = pastes.fold("a,b\n" * 9, "data.csv"), pastes.enclose("x" * 2000, kind="paste")
    sent = pastes.expand(f"{attached}Compare with {pasted}.")
    again = pastes.enclose_again(f"{sent} Again?")
    assert again == f"{attached}Compare with {pasted}. Again?"
    assert pastes.expand(again) == f"{sent} Again?"


@given(st.lists(literal), literal)
def test_text_that_is_given_back_is_what_it_was_whatever_was_folded_before(texts, given_back):
    pastes = Pastes()
    for number, text in enumerate(texts):
        pastes.fold(text, f"label {number}")
    assert pastes.expand(pastes.enclose_again(given_back)) == given_back


@given(st.lists(literal), st.booleans())
def test_text_comes_back_as_it_was_whatever_it_contains(texts, are_folded):  # T38: bytes in = bytes sent
    pastes = Pastes()
    held = [pastes.fold(text, "label") if are_folded else pastes.enclose(text) for text in texts]
    assert pastes.expand("".join(held)) == "".join(texts)
    assert all(len(mark) == 1 for mark in held if are_folded)


def test_a_pasted_mark_is_no_other_text():  # T38
    pastes = Pastes()
    pastes.fold("secret", "label")
    assert pastes.expand(pastes.enclose(MARK)) == MARK
    assert pastes.expand(pastes.fold(f"with {MARK} in it", "label")) == f"with {MARK} in it"


def test_the_same_text_takes_one_mark_and_when_they_run_out_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(module, "_LAST", module._FIRST + 2)
    pastes = Pastes()
    long = "a\n" * 20
    assert pastes.enclose(long) == pastes.enclose(long)
    first = pastes.enclose(long)
    for text in ("b", "c", "d"):
        last = pastes.fold(text, "label")
    assert (pastes.expand(first), pastes.expand(last)) == ("d", "d")
    assert pastes.expand(pastes.enclose(long)) == long


def shown(pastes, line):
    control = BufferControl(Buffer())
    arguments = (control, Document(line), 0, lambda i: i, [("", line)], 80, 24)
    transformation = LabelProcessor(pastes).apply_transformation(TransformationInput(*arguments))
    return "".join(text for _, text, *_ in transformation.fragments), transformation


def test_labels_are_shown_in_place_and_positions_map_both_ways():
    pastes = Pastes()
    line = "ab" + pastes.fold("x", "[label]") + "中" + pastes.fold("y", "[2]")
    text, transformation = shown(pastes, line)
    assert text == "ab[label]中[2]"
    assert [transformation.source_to_display(place) for place in range(7)] == [0, 1, 2, 9, 10, 13, 14]
    assert [transformation.display_to_source(place) for place in range(15)] == [
        0,
        1,
        *[2] * 7,
        3,
        *[4] * 3,
        5,
        6,
    ]


def test_a_label_may_change_and_is_one_harmless_line():
    pastes = Pastes()
    mark = pastes.fold("x", "[counting]")
    pastes.relabel(mark, "[a\n\x1b[31m  b]")
    assert shown(pastes, mark)[0] == "[a \ufffd[31m b]"


def test_a_line_without_labels_is_left_alone():
    assert shown(Pastes(), "plain")[0] == "plain"
