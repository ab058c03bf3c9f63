"""A transcript as one JSON object, and back; also read are the lists of messages that other programs write.

    {"format": "turbospark_chat", "version": 1, "title", "model", "created", "system",
     "turns": [{"user", "reply", "reasoning", "complete", and the turn's details by their names}]}

The record is what the object holds as Python values; the Markdown form is made of the same one. What it says comes
back exactly, but that two surrogates which make a pair come back as the character they mean.
"""

import json
import reprlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.transcript import TURN_KEYS, Transcript, TranscriptTurn
from turbospark_chat.errors import TranscriptError

FORMAT = "turbospark_chat"
VERSION = 1

Record = dict[str, Any]
T = TypeVar("T")

_KINDS: dict[type, str] = {str: "text", bool: "true or false", list: "a list", dict: "an object"}


def to_json(transcript: Transcript) -> str:
    """Return the transcript as JSON text."""
    return json_text(to_record(transcript), indent=2) + "\n"


def from_json(text: str) -> Transcript:
    """Read a transcript, or a list of `{"role", "content"}` messages, alone or as the `messages` of an object.

    Raises:
        TranscriptError: what was expected, and where.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise TranscriptError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise TranscriptError("not a transcript: its JSON is nested too deep") from error
    if isinstance(value, list):
        return _from_messages(value)
    if isinstance(value, dict) and "messages" in value:
        known = {key: value[key] for key in ("title", "model") if isinstance(value.get(key), str)}
        return _from_messages(_expect(value["messages"], list, "`messages`"), **known)
    if isinstance(value, dict) and "turns" in value:
        return from_record(value)
    raise TranscriptError(
        "neither a transcript nor messages: expected a list, or an object with `turns` or `messages`"
    )


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return JSON that UTF-8 can hold, with every other character as it is."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # a surrogate, just as JSON escapes it


def to_record(transcript: Transcript) -> Record:
    """Return the transcript as the object that JSON holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": transcript.title,
        "model": transcript.model,
        "created": transcript.created.isoformat() if transcript.created else None,
        "system": transcript.system,
        "turns": [
            {
                "user": turn.user.content,
                "reply": turn.reply.content,
                "reasoning": turn.reply.reasoning,
                "complete": turn.reply.complete,
                **turn.details,
            }
            for turn in transcript.turns
        ],
    }


def from_record(record: Record) -> Transcript:
    """Return the transcript that an object says. Unknown keys of a turn are its details, others mean nothing.

    Raises:
        TranscriptError: what was expected, and where.
    """
    if record.get("format") != FORMAT:
        raise TranscriptError(f"`format` is {_shown(record.get('format'))}, expected {FORMAT!r}")
    if record.get("version") != VERSION:
        raise TranscriptError(f"`version` is {_shown(record.get('version'))}, this program reads {VERSION}")
    turns = _expect(record.get("turns"), list, "`turns`")
    return Transcript(
        _expect(record.get("title", ""), str, "`title`"),
        _expect(record.get("model", ""), str, "`model`"),
        _time(record.get("created")),
        _expect_or_none(record.get("system"), str, "`system`"),
        tuple(_turn(turn, f"turn {number}") for number, turn in enumerate(turns, start=1)),
    )


def _turn(value: object, where: str) -> TranscriptTurn:
    turn: Record = _expect(value, dict, where)
    reply = Message(
        "assistant",
        _expect(turn.get("reply"), str, f"{where}: `reply`"),
        reasoning=_expect_or_none(turn.get("reasoning"), str, f"{where}: `reasoning`"),
        complete=_expect(turn.get("complete", True), bool, f"{where}: `complete`"),
    )
    user = Message("user", _expect(turn.get("user"), str, f"{where}: `user`"))
    return TranscriptTurn(user, reply, {key: turn[key] for key in turn if key not in TURN_KEYS})


def _from_messages(values: Sequence[object], *, title: str = "", model: str = "") -> Transcript:
    """Return messages as whole turns: a system prompt first, if any, then user and assistant in turn."""
    messages = [_message(value, f"message {number}") for number, value in enumerate(values, start=1)]
    n_system = 1 if messages and messages[0].role == "system" else 0
    turns = messages[n_system:]
    for index, message in enumerate(turns):
        expected = ("user", "assistant")[index % 2]
        if message.role != expected:
            number = n_system + index + 1
            raise TranscriptError(f"message {number}: `role` is {message.role!r}, expected {expected!r}")
    if len(turns) % 2:
        raise TranscriptError(f"message {len(messages)} has no reply: a conversation is made of whole turns")
    pairs = zip(turns[::2], turns[1::2], strict=True)
    system = messages[0].content if n_system else None
    return Transcript(title, model, None, system, tuple(TranscriptTurn(*pair) for pair in pairs))


def _message(value: object, where: str) -> Message:
    fields: Record = _expect(value, dict, where)
    role = fields.get("role")
    if role not in ("system", "user", "assistant"):
        raise TranscriptError(f"{where}: `role` is {_shown(role)}, expected system, user or assistant")
    content = _content(fields.get("content"), f"{where}: `content`")
    if role != "assistant":
        return Message(role, content)
    reasoning = fields.get("reasoning_content", fields.get("reasoning"))
    return Message(role, content, reasoning=_expect_or_none(reasoning, str, f"{where}: the reasoning"))


def _content(value: object, where: str) -> str:
    """Return the text of a message's content: text itself, or a list of parts which are all text."""
    if not isinstance(value, list):
        return _expect(value, str, where)
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in value]
    return "".join(_expect(part, str, f"{where}, part {n}") for n, part in enumerate(parts, start=1))


def _time(value: object) -> datetime | None:
    text = _expect_or_none(value, str, "`created`")
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise TranscriptError(
            f"`created` is {_shown(text)}, expected a time like 2026-01-31T09:30+00:00"
        ) from None


def _expect(value: object, kind: type[T], where: str) -> T:
    """Return a value of the kind that belongs there."""
    if not isinstance(value, kind):
        raise TranscriptError(f"{where} is {_shown(value)}, expected {_KINDS[kind]}")
    return value


def _expect_or_none(value: object, kind: type[T], where: str) -> T | None:
    return None if value is None else _expect(value, kind, where)


def _shown(value: object) -> str:
    """Return a value in a few words for a message."""
    return "missing" if value is None else reprlib.repr(value)
