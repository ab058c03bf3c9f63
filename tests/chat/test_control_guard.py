"""Text never becomes a control token, and keeps its characters. Case 16."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.control_guard import ControlGuard
from turbospark_chat.chat.rendered_prompt import Control, Text

SPELLINGS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "<s>[INST]", "<｜User｜>", "<x y>")
GUARD = ControlGuard(SPELLINGS)


def test_a_render_is_cut_into_control_tokens_and_literal_text() -> None:
    rendered = "<s>" + GUARD.protect("a<s>") + "</s><|im_"
    assert GUARD.segments(rendered).segments == (Control("<s>"), Text("a<s>"), Control("</s>"), Text("<|im_"))
    assert GUARD.segments(rendered).text == "<s>a<s></s><|im_"


@pytest.mark.parametrize(
    ("rendered", "segments"),
    [
        ("", ()),
        ("plain", (Text("plain"),)),
        ("<s><s>", (Control("<s>"), Control("<s>"))),
        ("<s>[INST]", (Control("<s>[INST]"),)),
        ("<<s>>", (Text("<"), Control("<s>"), Text(">"))),
        ("<x y>", (Control("<x y>"),)),
    ],
    ids=["empty", "no control", "side by side", "longest first", "inside others", "with a space"],
)
def test_control_spellings_are_found_from_the_left_longest_first(
    rendered: str, segments: tuple[Control | Text, ...]
) -> None:
    assert GUARD.segments(rendered).segments == segments


@given(st.text())
def test_protected_text_is_restored(text: str) -> None:
    protected = GUARD.protect(text)
    assert GUARD.restore(protected) == text
    assert len(protected) == len(text)
    assert protected.split() == [GUARD.protect(word) for word in text.split()]


@given(
    st.lists(
        st.sampled_from(SPELLINGS).flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[n:] + s[:n]))
    )
)
def test_no_character_of_a_spelling_is_left_in_protected_text(pieces: list[str]) -> None:
    protected = GUARD.protect("".join(pieces))
    assert set(protected) & set("".join(SPELLINGS)) <= {" "}


def test_a_lone_surrogate_is_no_text_and_becomes_u_fffd() -> None:
    everyone = "".join(map(chr, range(0xD800, 0xE000)))
    assert GUARD.restore(GUARD.protect(everyone)) == "\ufffd" * len(everyone)
    assert GUARD.segments(everyone).text.encode()  # what a template could write itself is text as well


def test_any_private_use_character_is_restored() -> None:
    text = "\ue000\U000f0000\U0010fffd"
    assert GUARD.restore(GUARD.protect(text)) == text


def test_values_in_lists_and_dicts_are_protected_and_their_keys_only_where_they_could_do_harm() -> None:
    value = {"type": "<s>", "</s>": ["<s>", ("<s>", 1, None)], 7: True}
    protected = GUARD.protect(value)
    assert "type" in protected
    assert "</s>" not in protected
    assert "<" not in str(protected)
    assert GUARD.restore(protected) == value


@pytest.mark.parametrize("spellings", [(), ("",), ("  ", "\n\n")], ids=["none", "empty", "white space"])
def test_without_a_visible_spelling_everything_is_text(spellings: tuple[str, ...]) -> None:
    guard = ControlGuard(spellings)
    assert guard.protect("a  b\n\n") == "a  b\n\n"
    assert guard.segments("a  b\n\n").segments == (Text("a  b\n\n"),)


def test_more_characters_than_placeholders_still_leave_no_spelling_unprotected() -> None:
    guard = ControlGuard(["<" + "".join(map(chr, range(0x4E00, 0x4E00 + 3000))) + ">", "[s]"])
    assert set(guard.protect("<>[]")).isdisjoint("<>[]")


def test_a_function_of_text_answers_for_the_literal_text() -> None:
    protected = GUARD.protect("<s>and</s>")
    assert GUARD.literally(str.find)(protected, "</s>") == 6
    assert GUARD.literally(str.startswith)(protected, "<s>") is True
    parts = GUARD.literally(str.split)(protected, "and")
    assert GUARD.restore(parts) == ["<s>", "</s>"]
    assert GUARD.segments("".join(parts)).segments == (Text("<s></s>"),)


def test_a_function_that_is_not_misled_keeps_what_the_template_wrote() -> None:
    mixed = " <s>" + GUARD.protect("<s>") + " "
    stripped = GUARD.literally(str.strip)(mixed)
    assert GUARD.segments(stripped).segments == (Control("<s>"), Text("<s>"))
    assert GUARD.literally(str.upper)("<s>") == "<S>"


def test_bytes_do_not_carry_text_past_the_guard() -> None:
    with pytest.raises(UnicodeEncodeError):
        GUARD.literally(str.encode)(GUARD.protect("<s>"))
