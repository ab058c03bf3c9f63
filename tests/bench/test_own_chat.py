"""A chat with this program as a subject: what is counted is what was computed, and before which moment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from turbospark_chat.bench import own_chat
from turbospark_chat.bench.chat_plan import MESSAGES
from turbospark_chat.bench.own_chat import OwnChat
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.errors import DoesNotFitError

N_TURNS = 9  # the long message among them
# Halves of characters at the end of a reply that was cut are no part of it, and are in the cache for nothing. These
# bytes are random, and one reply ends in seven of them; the last id is never in the cache.
MOST_LOST = 6


def make_chat(folder: Path, *, context_length: int) -> OwnChat:
    path = write_tiny_model(folder / "tiny.gguf", context_length=context_length)
    return OwnChat(path, n_threads=1, n_positions=64)


@pytest.fixture
def chat(tmp_path: Path) -> OwnChat:
    return make_chat(tmp_path, context_length=8192)


@pytest.fixture
def fed(chat: OwnChat, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of every feeding."""
    seen: list[int] = []
    producer: Any = chat._model.producer
    feed = producer.produce_chunk

    def produce_chunk(tokens: Sequence[int], position: int, *, need_logits: bool) -> object:
        seen.append(len(tokens))
        return feed(tokens, position, need_logits=need_logits)

    monkeypatch.setattr(producer, "produce_chunk", produce_chunk)
    return seen


def test_what_is_evaluated_is_what_is_new_turn_after_turn(chat: OwnChat) -> None:
    encode = chat._model.tokenizer.encode
    first, *others = chat.talk(N_TURNS)
    assert first["n_evaluated"] == first["n_new"] == first["n_prompt"]
    for turn, message in zip(others, MESSAGES[1:N_TURNS], strict=True):
        assert 0 <= turn["n_evaluated"] - turn["n_new"] <= MOST_LOST
        assert 0 < turn["n_new"] - len(encode(message)) < 50  # the rest is the template's
        assert turn["n_ahead"] == 0 and turn["seconds"] > 0
    assert sum(turn["n_evaluated"] == turn["n_new"] for turn in others) > len(others) / 2


def test_what_is_read_ahead_is_not_evaluated_after_sending(chat: OwnChat) -> None:
    plain, ahead = chat.talk(N_TURNS), chat.talk_ahead(N_TURNS)
    assert [turn["n_prompt"] for turn in ahead] == [turn["n_prompt"] for turn in plain]
    assert [turn["n_new"] for turn in ahead] == [turn["n_new"] for turn in plain]
    for turn in ahead:
        assert 0 <= turn["n_evaluated"] + turn["n_ahead"] - turn["n_new"] <= MOST_LOST
        assert turn["n_evaluated"] < 25  # the end of the message and the header of the reply


@pytest.mark.parametrize("call", ["talk", "talk_ahead"])
def test_every_conversation_begins_cold(chat: OwnChat, fed: list[int], call: str) -> None:
    rounds = []
    for _ in range(2):
        fed.clear()
        getattr(chat, call)(3)
        rounds.append(list(fed))
    assert rounds[0] == rounds[1]


def test_a_conversation_that_does_not_fit_is_refused_not_cut(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFitError):
        make_chat(tmp_path, context_length=256).talk(3)


@pytest.mark.parametrize("call", ["paste", "paste_ahead"])
def test_a_pasted_message_is_read_while_it_is_read_over_or_not_at_all(
    chat: OwnChat, fed: list[int], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    jobs: list[Any] = []
    slept: list[float] = []
    n_fed: list[int] = []  # at the end of each wait

    class Thread(ModelThread):
        def submit(self, *work: Any, **options: Any) -> Any:
            jobs.append(super().submit(*work, **options))
            return jobs[-1]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        for job in jobs:
            job.wait()  # as if this machine did it in that time
        n_fed.append(sum(fed))

    monkeypatch.setattr(own_chat, "ModelThread", Thread)
    monkeypatch.setattr(own_chat.time, "sleep", sleep)
    assert getattr(chat, call)(2000) > 0
    assert slept == [0.3, 1.7]
    n_meanwhile, n_afterwards = n_fed[1] - n_fed[0], sum(fed) - n_fed[1]
    n_message = chat.count_paste()
    if call == "paste":
        assert n_meanwhile == 0 and n_afterwards > n_message
    else:
        assert n_meanwhile >= n_message - 1 and n_afterwards < 25 + own_chat.REPLY_TOKENS


def test_a_message_sent_before_it_was_read_is_answered_all_the_same(chat: OwnChat) -> None:
    assert chat.paste_ahead(0) > 0
