"""Stop strings: found wherever they lie, shown never, and nothing else withheld."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.stop_matcher import StopMatcher
from turbospark_chat.errors import SettingError


def run(stops, pushes):
    """Return the text shown after each push, then by finish, and the match."""
    matcher = StopMatcher(stops)
    return [matcher.push(text) for text in pushes], matcher.finish(), matcher.matched


def expected(stops, text):
    """The rule, spelled out: earliest completion, longest of equals, text before it."""
    for end in range(len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "pushes", "shown", "tail", "matched"),
    [
        pytest.param(
            ["XYZ\n##"], ["ab", "XY", "Z"], ["ab", "", ""], "XYZ", None, id="11-held-tail-is-released"
        ),
        pytest.param(["<end>assistant"], ["as"], ["as"], "", None, id="11-inside-is-no-prefix"),
        pytest.param(["lmnop"], ["kl", "mn", "opq"], ["k", "", ""], "", "lmnop", id="12-over-three-tokens"),
        pytest.param(["lmnop"], ["kl", "mn", "x"], ["k", "", "lmnx"], "", None, id="12-false-alarm"),
        pytest.param(["\n"], ["A\n\nB"], ["A"], "", "\n", id="12-first-of-several-matches"),
        pytest.param(["cd", "bcde"], ["abcdef"], ["ab"], "", "cd", id="12-earliest-completion"),
        pytest.param(["bcde", "cd"], ["abcdef"], ["ab"], "", "cd", id="12-list-order-is-no-matter"),
        pytest.param(["cd", "bcd"], ["abcdef"], ["a"], "", "bcd", id="12-longest-of-one-end"),
        pytest.param(["aab"], ["aaab"], ["a"], "", "aab", id="12-overlap"),
        pytest.param(["abac"], ["aba", "bac"], ["", "ab"], "", "abac", id="12-overlap-over-tokens"),
        pytest.param(["aabaaac"], ["aabaaabaaac"], ["aaba"], "", "aabaaac", id="12-overlap-inside-the-stop"),
        pytest.param(None, ["a", "b"], ["a", "b"], "", None, id="C4-none"),
        pytest.param([], ["a", "b"], ["a", "b"], "", None, id="C4-empty-list"),
        pytest.param(["END"], [""] * 10 + ["EN", "", "D"], [""] * 13, "", "END", id="C5-empty-pushes"),
        pytest.param(["ab", "abcdef"], ["x", "ab", "c"], ["x", "", ""], "", "ab", id="C6-short-one-at-once"),
        pytest.param(["END"], ["EN", "D."], ["", ""], "", "END", id="C6-over-a-token-edge"),
        pytest.param(["END"], ["END", "later"], ["", ""], "", "END", id="C7-nothing-after-a-match"),
        pytest.param(["<<stop>>"], ["hel", "lo wo", "rld"], ["hel", "lo wo", "rld"], "", None, id="C9-whole"),
        pytest.param(
            ["<<stop>>"], ["a<<", "s<"], ["a", "<<s"], "<", None, id="C9-only-the-suffix-that-may-grow"
        ),
        pytest.param(["🛑x"], ["go🛑", "x"], ["go", ""], "", "🛑x", id="beyond-the-basic-plane"),
    ],
)
def test_stop_strings(stops, pushes, shown, tail, matched):
    assert run(stops, pushes) == (shown, tail, matched)


@pytest.mark.parametrize("stops", [[""], ["", "END"]])
def test_empty_stop_string_is_refused(stops):  # case C4
    with pytest.raises(SettingError, match="empty stop string"):
        StopMatcher(stops)


def test_finish_twice_releases_the_tail_once():
    matcher = StopMatcher(["END"])
    matcher.push("EN")
    assert [matcher.finish(), matcher.finish()] == ["EN", ""]
    assert (matcher.push("D"), matcher.matched) == ("D", None)


ab_text = st.text("ab", max_size=40)
ab_stops = st.lists(st.text("ab", min_size=1, max_size=7), max_size=4)


@given(stops=ab_stops, pushes=st.lists(ab_text, max_size=8))
def test_any_split_shows_the_same_text_and_finds_the_same_match(stops, pushes):  # cases 12, T71
    shown, tail, matched = run(stops, pushes)
    assert ("".join(shown) + tail, matched) == expected(stops, "".join(pushes))


@given(stops=ab_stops, pushes=st.lists(ab_text, max_size=8))
def test_what_is_held_is_the_longest_proper_prefix_of_a_stop_string(stops, pushes):  # cases C9, T70
    matcher = StopMatcher(stops)
    text = shown = ""
    for push in pushes:
        text += push
        shown += matcher.push(push)
        if matcher.matched:
            break
        prefixes = {stop[:length] for stop in stops for length in range(len(stop))} | {""}
        held = next(text[start:] for start in range(len(text) + 1) if text[start:] in prefixes)
        assert shown + held == text


def test_work_grows_with_the_text_not_with_the_stop_string():
    # Each character either lengthens a partial match or ends part of one, so comparisons stay under 2 per
    # character. Restarting the comparison at every position would make 2 000 of them per character here.
    n_compared = 0

    class CountingStr(str):
        def __getitem__(self, index):
            nonlocal n_compared
            n_compared += 1
            return str.__getitem__(self, index)

    matcher = StopMatcher([CountingStr("a" * 2_000 + "b")])
    n_compared = 0
    shown = "".join(matcher.push("a" * 100) for _ in range(100))
    assert len(shown) == 8_000
    assert 10_000 <= n_compared <= 3 * 10_000
