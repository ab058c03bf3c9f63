"""Prefill before a message is sent: what is certain is computed, and the turn is as it would have been without."""

import itertools

import pytest
from chat_templates import CHATML, LLAMA3, Family
from hypothesis import given
from hypothesis import strategies as st
from sessions import CancelAfter, Chat, hash_chat

from turbospark_chat.chat.prompt_ahead import CHUNK_SIZE
from turbospark_chat.errors import DoesNotFitError

LONG = "tell me more about it, " * 20


def evaluated(chat: Chat) -> int:
    """How many tokens the model has computed so far."""
    return chat.producer.model.evaluated  # type: ignore[attr-defined]


@pytest.fixture(params=[CHATML, LLAMA3], ids=["ChatML", "Llama 3"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


def test_the_system_prompt_is_read_before_anything_is_typed(family: Family):
    chat = hash_chat(family, system="be kind")
    n_ahead = chat.read_ahead()
    assert n_ahead == len(chat.record) > 10
    result = chat.say("hi")
    assert (result.raw.reused_prefix_tokens, result.n_ahead) == (n_ahead, n_ahead)


def test_after_a_reply_its_end_and_the_next_header_are_read(family: Family):
    chat = hash_chat(family)
    chat.say("hi")
    n_held = len(chat.record)
    n_ahead = chat.read_ahead()
    assert len(chat.record) == n_held + n_ahead > n_held
    result = chat.say("and now?")
    assert result.raw.reused_prefix_tokens == n_held + n_ahead
    assert result.n_ahead == n_ahead


def test_a_draft_is_read_but_for_its_last_piece(family: Family):
    chat = hash_chat(family, pieces=(" about", " it", " itx"))
    chat.read_ahead("tell me more about it")
    said = chat.tokenizer.decode(chat.record)
    assert said.endswith("tell me more about")
    chat.say("tell me more about it all")


def test_a_sent_draft_leaves_only_its_end_to_compute(family: Family):
    chat = hash_chat(family)
    chat.read_ahead(LONG)
    n_before = evaluated(chat)
    result = chat.say(LONG)
    assert evaluated(chat) - n_before == result.raw.prefilled_tokens + result.raw.new_tokens - 1
    assert result.raw.prefilled_tokens < 30 < result.n_ahead


def test_nothing_is_computed_twice_while_a_draft_grows(family: Family):
    chat = hash_chat(family)
    for length in range(0, len(LONG), 7):
        chat.read_ahead(LONG[:length])
    assert evaluated(chat) == len(chat.record)


def test_a_changed_draft_is_read_again_from_where_it_differs(family: Family):
    chat = hash_chat(family)
    chat.read_ahead("one two three four ")
    n_before, n_held = evaluated(chat), len(chat.record)
    chat.read_ahead("one two six")
    assert evaluated(chat) - n_before < n_held - len("one two ")
    assert chat.tokenizer.decode(chat.record).endswith("one two six")
    chat.say("one two six")


def test_a_shorter_draft_computes_nothing_and_keeps_what_there_is(family: Family):
    chat = hash_chat(family)
    chat.read_ahead(LONG)
    n_before, record = evaluated(chat), chat.record
    chat.read_ahead(LONG[:40])
    assert (evaluated(chat), chat.record) == (n_before, record)
    chat.say(LONG[:40])


@given(
    n_looks=st.integers(0, 8), draft=st.text("ab \né😀", max_size=120), text=st.text("ab \né😀", max_size=60)
)
def test_a_cancel_at_any_chunk_leaves_a_turn_as_cold_as_ever(n_looks: int, draft: str, text: str):
    chat = hash_chat(CHATML)
    chat.say("hi")
    chat.read_ahead(draft, CancelAfter(n_looks))
    chat.say(text)  # compared with a cold run
    chat.read_ahead(draft, CancelAfter(n_looks))
    chat.retry()


def test_a_cancelled_reading_stops_within_a_chunk():
    chat = hash_chat(CHATML)
    for n_looks in range(4):
        chat.session.clear()
        before = evaluated(chat)
        chat.read_ahead(str(n_looks) + LONG, CancelAfter(n_looks))
        assert evaluated(chat) - before <= n_looks * CHUNK_SIZE


def test_with_reuse_off_nothing_is_read(family: Family):
    chat = hash_chat(family, reuse="off")
    assert (chat.read_ahead(LONG), evaluated(chat)) == (0, 0)


def test_a_draft_that_does_not_fit_changes_nothing():
    chat = hash_chat(CHATML, context_length=120)
    chat.say("hi")
    record = chat.record
    with pytest.raises(DoesNotFitError):
        chat.read_ahead(LONG)
    assert chat.record == record


def test_a_draft_that_cannot_fit_is_not_even_encoded(monkeypatch):
    chat = hash_chat(CHATML, context_length=120)
    monkeypatch.setattr(chat.session._replier.prompts, "certain_ids", None)
    assert chat.read_ahead("x" * 1000) == 0


def test_a_turn_counts_what_was_read_ahead_of_it_only(family: Family):
    chat = hash_chat(family)
    chat.read_ahead(LONG)
    assert chat.say(LONG).n_ahead > 0
    assert chat.say("next").n_ahead == 0
    chat.read_ahead("third")
    chat.session.undo()
    assert 0 <= chat.say("other").n_ahead < 60


def test_reading_ahead_is_no_miss_whatever_is_sent_then(family: Family):
    chat = hash_chat(family)
    chat.say("hi")
    for draft, text in itertools.pairwise(["one", "two", "one two", "on", "three" * 30]):
        chat.read_ahead(draft)
        assert chat.say(text).miss is None
