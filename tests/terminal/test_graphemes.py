"""Where characters end: on the window used, as on the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.terminal.graphemes import grapheme_end, grapheme_start

FAMILY, WAVE, FLAG, HEART = "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f"


@pytest.mark.parametrize("character", ["a", "中", "e\u0301", FAMILY, WAVE, FLAG, HEART, "한"])
@pytest.mark.parametrize("before", ["", "x", "中", FLAG, "\n"])
@pytest.mark.parametrize("after", ["", "y", FLAG, "中"])
def test_a_place_within_a_character_leads_to_its_ends(character, before, after):  # T29
    text, start, end = before + character + after, len(before), len(before + character)
    for place in range(start, end + 1):
        assert grapheme_start(text, place) == (end if place == end else start)
        assert grapheme_end(text, place) == (start if place == start else end)


def test_the_third_letter_of_a_flag_begins_another():
    assert [grapheme_start(FLAG * 2, place) for place in range(5)] == [0, 0, 2, 2, 4]


@given(
    st.text(st.sampled_from(["a", "中", *FAMILY, *FLAG, "\u0301", "\ufe0f", "\n"]), max_size=12),
    st.integers(0, 12),
)
def test_ends_enclose_the_place_and_stay(text, place):
    place = min(place, len(text))
    start, end = grapheme_start(text, place), grapheme_end(text, place)
    assert 0 <= start <= place <= end <= len(text)
    assert (grapheme_start(text, start), grapheme_end(text, end)) == (start, end)


def test_nothing_is_read_but_what_is_near(monkeypatch):
    seen = []
    from turbospark_chat.terminal import graphemes

    split = graphemes.split_graphemes
    monkeypatch.setattr(graphemes, "split_graphemes", lambda text: seen.append(len(text)) or split(text))
    assert grapheme_start("中" * 1_000_000, 500_000) == 500_000
    assert seen[0] < 200
