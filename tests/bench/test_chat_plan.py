"""The conversation that is measured has in it what is hard for reuse."""

import pytest

from turbospark_chat.bench.chat_plan import LONG_MESSAGE, MESSAGES


def test_there_are_twenty_messages_all_different() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES) == 20


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("```python\n", id="code"),
        pytest.param("    for x in xs:\n", id="white space at the start of a line"),
        pytest.param("\N{TOMATO}", id="emoji"),
        pytest.param("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}", id="emoji of several code points"),
        pytest.param("日本", id="CJK"),
        pytest.param("Сколько", id="Cyrillic"),
        pytest.param("1,000,000", id="numbers"),
        pytest.param("  with   their", id="runs of spaces"),
    ],
)
def test_it_has_every_kind_of_text(kind: str) -> None:
    assert any(kind in message for message in MESSAGES)


def test_one_message_is_as_long_as_a_pasted_one() -> None:
    assert LONG_MESSAGE in MESSAGES[1:-1]  # a conversation before it and one after it
    assert 300 <= len(LONG_MESSAGE.split()) <= 400  # some 400 tokens
