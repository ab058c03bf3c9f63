"""What a model writes may not drive the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.terminal.harmless import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\ufffd[2J\ufffd]0;title\ufffd"),
        ("\x9b2J", "\ufffd2J"),  # C1: one character that begins a sequence
        ("a\bb\x7f\x00\x0e\x05", "a\ufffdb" + "\ufffd" * 4),
        ("user \u202etxt.exe", "user \ufffdtxt.exe"),
        ("\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069", "\ufffd" * 8),
        ("one\r\ntwo", "one\ntwo"),
        ("safe\rhidden", "safehidden"),
    ],
    ids=["escapes", "C1", "controls", "override", "every direction", "line end", "carriage return"],
)
def test_controls_are_shown_instead_of_obeyed(text, shown):
    assert harmless(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a\tb\n",
        "👨\u200d👩\u200d👧 ➡\ufe0f 🇩🇪",
        "中文 한국어 نص עברית",
        "ne\u0301e soft\u00adhyphen \u200b\u2028",
    ],
)
def test_text_stays_as_it_is(text):
    assert harmless(text) == text


@given(st.text())
def test_nothing_a_terminal_obeys_is_left(text):
    left = harmless(text)
    assert not [c for c in left if (ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160]
    assert harmless(left) == left
