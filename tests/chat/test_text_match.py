"""Text is found whatever its case and script, and shown with what is around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.text_match import find_folded, in_one_line, snippet_around


@pytest.mark.parametrize(
    ("text", "wanted", "matched"),
    [
        ("The Quick fox", "quick", "Quick"),
        ("ПРИВЕТ, мир", "привет", "ПРИВЕТ"),
        ("Ὀδυσσεύς said", "ὈΔΥΣΣΕΎΣ", "Ὀδυσσεύς"),  # a final sigma
        ("die STRASSE entlang", "straße", "STRASSE"),
        ("die Straße entlang", "STRASSE", "Straße"),
        ("ßßß then ﬁne", "FINE", "ﬁne"),  # characters that grow before the match, and in it
        ("İstanbul", "i̇stanbul", "İstanbul"),
        ("naïve 😀 tail", "😀 TAIL", "😀 tail"),
        ("100% of a_b*", "0% of A_B*", "0% of a_b*"),
    ],
)
def test_a_match_is_found_in_the_text_as_it_was_written(text: str, wanted: str, matched: str) -> None:
    found = find_folded(text, wanted.casefold())
    assert found is not None
    assert text[slice(*found)] == matched


@pytest.mark.parametrize(("text", "wanted"), [("abc", "abd"), ("", "a"), ("axb", "a%b"), ("axb", "a_b")])
def test_what_is_not_there_is_not_found(text: str, wanted: str) -> None:
    assert find_folded(text, wanted) is None


@given(st.text(), st.text(min_size=1), st.text())
def test_a_part_of_a_text_is_found_in_it_in_upper_case_too(before: str, part: str, after: str) -> None:
    text = before + part + after
    found = find_folded(text, part.upper().casefold())
    if found is None:  # a few characters have an upper case that folds to something else
        assert part.upper().casefold() != part.casefold()
    else:
        assert part.upper().casefold() in text[slice(*found)].casefold()


@given(st.text(), st.text(min_size=1), st.text())
def test_a_snippet_is_one_line_and_says_where_the_match_is(before: str, part: str, after: str) -> None:
    snippet = snippet_around(before + part + after, len(before), len(before) + len(part))
    shown = snippet.text[snippet.start : snippet.end]
    assert len(shown) == len(part)
    assert all(seen in (" ", written) for seen, written in zip(shown, part, strict=True))
    assert not set(snippet.text) & set("\n\r\t\v\f\x1b\0\x85\u2028")
    assert len(snippet.text) <= 30 + len(part) + 60 + 2


def test_a_snippet_has_dots_where_there_is_more() -> None:
    text = "a" * 100 + "needle" + "b" * 100
    snippet = snippet_around(text, 100, 106)
    assert snippet.text == "…" + "a" * 30 + "needle" + "b" * 60 + "…"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("short", "short"),
        ("  two\n\twords\x1b[0m ", "two words [0m"),
        ("one two three four", "one two three…"),
        ("a" * 30, "a" * 14 + "…"),
        ("", ""),
        ("👩\u200d🚀 emoji", "👩\u200d🚀 emoji"),  # the joiner within an emoji stays
    ],
)
def test_a_title_is_the_first_words_in_one_line(text: str, line: str) -> None:
    assert in_one_line(text, limit=15) == line
