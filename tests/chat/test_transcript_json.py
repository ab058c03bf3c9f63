"""Transcripts as JSON, and the messages of other programs: read back exactly, or refused with the place."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from transcripts import transcript_of, transcripts

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.transcript import Transcript, TranscriptTurn
from turbospark_chat.chat.transcript_json import from_json, to_json
from turbospark_chat.errors import TranscriptError

HEADER = {"format": "turbospark_chat", "version": 1}
TURN = {"user": "hi", "reply": "ho"}
HI_HO = TranscriptTurn(Message("user", "hi"), Message("assistant", "ho"))
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@given(transcripts)
def test_what_was_written_is_read_back(transcript: Transcript) -> None:
    assert from_json(to_json(transcript)) == transcript


def test_it_is_one_object_with_plain_names() -> None:
    reply = Message("assistant", "4", reasoning="easy", complete=False)
    turn = TranscriptTurn(Message("user", "2+2?"), reply, {"seed": 7, "stop": ["x"]})
    transcript = Transcript("Sums", "m", datetime(2026, 1, 31, 9, 5, tzinfo=UTC), "Be brief.", (turn,))
    assert json.loads(to_json(transcript)) == {
        "format": "turbospark_chat",
        "version": 1,
        "title": "Sums",
        "model": "m",
        "created": "2026-01-31T09:05:00+00:00",
        "system": "Be brief.",
        "turns": [
            {"user": "2+2?", "reply": "4", "reasoning": "easy", "complete": False, "seed": 7, "stop": ["x"]}
        ],
    }


def test_letters_stay_readable_and_lone_surrogates_come_back() -> None:
    transcript = transcript_of("漢é\udc80", "\ud83d")
    written = to_json(transcript)
    assert '"漢é\\udc80"' in written
    written.encode("utf-8")
    assert from_json(written) == transcript


def test_only_turns_are_needed_and_unknown_keys_mean_nothing() -> None:
    value = {**HEADER, "turns": [TURN], "mood": "good"}
    assert from_json(json.dumps(value)) == Transcript("", "", turns=(HI_HO,))


@pytest.mark.parametrize(
    ("value", "transcript"),
    [
        (MESSAGES, Transcript("", "", turns=(HI_HO,))),
        ({"messages": MESSAGES}, Transcript("", "", turns=(HI_HO,))),
        (
            {"messages": MESSAGES, "model": "gpt", "title": "T", "created": 17000},
            Transcript("T", "gpt", turns=(HI_HO,)),
        ),
        ([{"role": "system", "content": "s"}, *MESSAGES], Transcript("", "", system="s", turns=(HI_HO,))),
        ([{"role": "system", "content": "s"}], Transcript("", "", system="s")),
        ([], Transcript("", "")),
        (
            [
                {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
                MESSAGES[1],
            ],
            Transcript("", "", turns=(HI_HO,)),
        ),
        (
            [MESSAGES[0], {**MESSAGES[1], "reasoning_content": "hm"}],
            transcript_of("hi", "ho", reasoning="hm"),
        ),
        ([MESSAGES[0], {**MESSAGES[1], "reasoning": "hm"}], transcript_of("hi", "ho", reasoning="hm")),
    ],
    ids=[
        "list",
        "object",
        "names",
        "system",
        "system alone",
        "empty",
        "parts",
        "reasoning_content",
        "reasoning",
    ],
)
def test_messages_of_other_programs_become_turns(value: object, transcript: Transcript) -> None:
    read = from_json(json.dumps(value))
    assert (read.system, read.turns) == (transcript.system, transcript.turns)
    if isinstance(value, dict) and "title" in value:
        assert read == transcript


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON: .*line 1 column 1"),
        ('{"turns": [}', "not JSON: .*line 1 column 12"),
        ("[" * 100_000, "nested too deep"),
        ("3", "neither a transcript nor messages"),
        ("{}", "neither a transcript nor messages"),
        ('{"turns": []}', "`format` is missing, expected 'turbospark_chat'"),
        ('{"format": "turbospark_chat", "version": 2, "turns": []}', "`version` is 2, this program reads 1"),
        ('{"messages": 3}', "`messages` is 3, expected a list"),
    ],
)
def test_what_is_no_transcript_is_refused(text: str, problem: str) -> None:
    with pytest.raises(TranscriptError, match=problem):
        from_json(text)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"turns": {}}, "`turns` is {}, expected a list"),
        ({"title": 3}, "`title` is 3, expected text"),
        ({"model": None}, "`model` is missing, expected text"),
        ({"system": ["s"]}, r"`system` is \['s'\], expected text"),
        ({"created": 3}, "`created` is 3, expected text"),
        ({"created": "soon"}, "`created` is 'soon', expected a time like 2026-01-31T"),
        ({"turns": [TURN, 5]}, "turn 2 is 5, expected an object"),
        ({"turns": [TURN, {"user": "hi"}]}, "turn 2: `reply` is missing, expected text"),
        ({"turns": [{**TURN, "user": ["x"] * 99}]}, r"turn 1: `user` is \[.{,60}\], expected text"),
        ({"turns": [{**TURN, "reasoning": False}]}, "turn 1: `reasoning` is False, expected text"),
        ({"turns": [{**TURN, "complete": "yes"}]}, "turn 1: `complete` is 'yes', expected true or false"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_place(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(TranscriptError, match=problem):
        from_json(json.dumps({**HEADER, "turns": [], **fields}))


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        (["hi"], "message 1 is 'hi', expected an object"),
        ([{"content": "hi"}], "message 1: `role` is missing, expected system, user or assistant"),
        ([*MESSAGES, {"role": "tool", "content": "4"}], "message 3: `role` is 'tool', expected system, user"),
        ([{"role": ["user"], "content": "4"}], r"message 1: `role` is \['user'\]"),
        ([{"role": "user"}], "message 1: `content` is missing, expected text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1: `content`, part 1 is missing"),
        ([MESSAGES[1]], "message 1: `role` is 'assistant', expected 'user'"),
        ([*MESSAGES, *MESSAGES[1:]], "message 3: `role` is 'assistant', expected 'user'"),
        ([*MESSAGES, {"role": "system", "content": "s"}], "message 3: `role` is 'system', expected 'user'"),
        ([MESSAGES[0], MESSAGES[0]], "message 2: `role` is 'user', expected 'assistant'"),
        ([*MESSAGES, MESSAGES[0]], "message 3 has no reply: a conversation is made of whole turns"),
    ],
)
def test_messages_that_are_no_whole_turns_are_refused(messages: list[object], problem: str) -> None:
    with pytest.raises(TranscriptError, match=problem):
        from_json(json.dumps(messages))
