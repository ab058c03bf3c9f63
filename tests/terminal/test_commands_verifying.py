"""`/verify`: what it shows of a sound cache and of a wrong one, and that it changes nothing."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chat_templates import CHATML
from command_context import FakeContext, archive_in
from sessions import Chat, hash_chat

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.errors import MemoryOverflowError, UsageError
from turbospark_chat.models.model_states import ModelStates


@pytest.fixture
def verifiable(tmp_path) -> Callable[..., tuple[FakeContext, Chat]]:
    """Make a chat in which two turns were taken, as commands see it, and its producer to tamper with."""

    def make(*, n_turns: int = 2, **changes: Any) -> tuple[FakeContext, Chat]:
        chat = hash_chat(CHATML)
        runner: Any = chat.producer
        states = ModelStates(runner, KvPrefix, lambda cancel: {})
        chat.session.set_model(replace(chat.session.model, **{"states": states} | changes))
        for number in range(n_turns):
            chat.say(f"message {number}")
        return FakeContext(chat.session, archive_in(tmp_path), None), chat

    return make


Verifiable = Callable[..., tuple[FakeContext, Chat]]


def rows(shown: str) -> dict[str, str]:
    return {line[:17].strip(): line[17:] for line in shown.split("\n")}


def test_a_sound_cache_is_said_to_be_sound_and_stays_as_it_is(verifiable: Verifiable) -> None:
    context, chat = verifiable()
    state, before, record = context.state, chat.producer.state.entries, chat.record
    assert rows(context.run("/verify")) == {
        "positions": f"{len(record)}, of {len(record)} tokens",
        "cache": "differs by 0.0e+00; up to 0.005 is rounding",
        "logits": "differ by 0.0e+00; up to 0.02 is rounding",
        "likeliest token": "the same",
        "verdict": "sound",
    }
    assert (context.state, chat.producer.state.entries, chat.record) == (state, before, record)
    assert chat.say("and on").raw.reused_prefix_tokens >= len(record)


def one_id_is_another(chat: Any) -> None:
    chat.producer.state.write(10, 99)


def one_position_was_lost(chat: Any) -> None:
    ids = list(chat.record)
    for position, token in enumerate(ids[:10] + ids[11:]):
        chat.producer.state.write(position, token)


def the_record_is_one_short(chat: Any) -> None:
    chat.producer.record.rewind_to(len(chat.record) - 1)


@pytest.mark.parametrize("tamper", [one_id_is_another, one_position_was_lost, the_record_is_one_short])
def test_a_wrong_cache_is_said_to_be_wrong(verifiable: Verifiable, tamper: Callable[[Any], None]) -> None:
    context, chat = verifiable()
    tamper(chat)
    shown = rows(context.run("/verify"))
    assert shown["verdict"].startswith("wrong")
    assert "in entries" in shown["cache"]
    assert shown["positions"].split(", of ")[0] == str(len(chat.producer.state))


def test_progress_is_that_of_a_prefill(verifiable: Verifiable) -> None:
    context, chat = verifiable()
    context.run("/verify")
    total = len(chat.record)
    assert context.events == [Prefill(min(done, total), total, 0) for done in range(64, total + 64, 64)]


def test_it_can_be_stopped(verifiable: Verifiable) -> None:
    context, _ = verifiable()
    context.cancel = threading.Event()
    context.cancel.set()
    assert (context.run("/verify"), context.events) == ("stopped", [])


def taint(chat: Any) -> None:
    chat.producer.record.taint()


@pytest.mark.parametrize(
    ("changes", "prepare"),
    [({"n_turns": 0}, None), ({"states": None}, None), ({}, taint)],
    ids=["nothing computed yet", "no states", "tainted"],
)
def test_where_there_is_nothing_to_compare_it_says_so(
    verifiable: Verifiable, changes: dict[str, Any], prepare: Callable[[Any], None] | None
) -> None:
    context, chat = verifiable(**changes)
    if prepare is not None:
        prepare(chat)
    with pytest.raises(
        UsageError, match="^nothing to verify: the model holds nothing that token ids describe$"
    ):
        context.run("/verify")


def test_where_memory_is_short_nothing_is_computed(verifiable: Verifiable) -> None:
    asked: list[int] = []

    def refuse_twice_as_much(n_positions: int) -> None:
        asked.append(n_positions)
        if len(asked) == 3:
            raise MemoryOverflowError("a KV cache", 2, 1, advice="give up")

    context, chat = verifiable(check_memory=refuse_twice_as_much)
    asked[:] = [0, 0]
    with pytest.raises(MemoryOverflowError):
        context.run("/verify")
    assert (asked[2], context.events) == (2 * len(chat.record), [])
