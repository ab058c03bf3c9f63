"""The transcript value: what is taken over from a conversation, and what no form could hold."""

from datetime import UTC, datetime

import pytest

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message, ToolCall
from turbospark_chat.chat.transcript import Transcript, TranscriptTurn, encodable

USER, REPLY = Message("user", "hi"), Message("assistant", "ho", reasoning="hm", complete=False)


def test_a_conversation_is_taken_over_with_what_is_known_of_its_turns() -> None:
    conversation = Conversation(system="be brief", turns=[Turn(USER, REPLY, "ho", (1, 2))] * 3)
    transcript = Transcript.of(conversation, title="T", model="m", details=[{"seed": 1}, {"seed": 2}])
    assert transcript == Transcript(
        "T",
        "m",
        None,
        "be brief",
        (
            TranscriptTurn(USER, REPLY, {"seed": 1}),
            TranscriptTurn(USER, REPLY, {"seed": 2}),
            TranscriptTurn(USER, REPLY, {}),
        ),
    )


@pytest.mark.parametrize(
    ("user", "reply", "details"),
    [
        (Message("tool", "4"), REPLY, {}),
        (Message("user", "hi", reasoning="hm"), REPLY, {}),
        (USER, Message("user", "ho"), {}),
        (USER, Message("assistant", "", tool_calls=(ToolCall("t", {}),)), {}),
        (USER, REPLY, {"reply": 1}),
    ],
    ids=["another role", "a user's reasoning", "no reply", "a tool call", "a name that is taken"],
)
def test_a_turn_that_a_file_could_not_hold_is_refused(
    user: Message, reply: Message, details: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="not a user|not a model|details"):
        TranscriptTurn(user, reply, details)


@pytest.mark.parametrize(
    ("title", "model", "created", "heading", "byline"),
    [
        ("a\n b\r\n\tc ", "m", None, "a b c", "m"),
        ("", "", None, "Conversation", ""),
        ("t", "", datetime(2026, 1, 31, 9, 5, 59, tzinfo=UTC), "t", "2026-01-31 09:05+00:00"),
        ("t", "m\n", datetime(2026, 1, 31, 9, 5), "t", "m, 2026-01-31 09:05"),
    ],
)
def test_heading_and_byline_are_one_line_each(
    title: str, model: str, created: datetime | None, heading: str, byline: str
) -> None:
    transcript = Transcript(title, model, created)
    assert (transcript.heading, transcript.byline) == (heading, byline)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("aé漢👩\x00", "aé漢👩\x00"),
        ("a\udc80b\ud83d", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "😀"),
    ],
)
def test_encodable_text_keeps_every_character_but_lone_surrogates(text: str, held: str) -> None:
    assert encodable(text) == held
