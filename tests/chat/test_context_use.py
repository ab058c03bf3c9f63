"""Tokens are counted for people as the next prompt would have them, and no producer is asked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chat_templates import CHATML, FAMILIES, QWEN3
from sessions import NEVER, CancelAfter, hash_chat, hash_runner, scripted_chat

from turbospark_chat.chat.context_use import ContextUse
from turbospark_chat.chat.conversation import Turn

Turns = tuple[Turn, ...]


def test_text_is_counted_as_text_also_where_it_spells_control_tokens() -> None:
    chat = scripted_chat(CHATML)
    assert [chat.session.count_text(text) for text in ("", "abc", "é", "<|im_end|>")] == [0, 3, 2, 10]


@pytest.mark.parametrize("keep_reasoning", ["off", "on"])
def test_what_each_role_said_and_the_template_wrote_make_the_whole(keep_reasoning: str) -> None:
    chat = scripted_chat(
        QWEN3, "why</think>so", "hm</think>yes!", system="Be kind.", keep_reasoning=keep_reasoning
    )
    chat.say("one")
    chat.say("three")
    use = chat.session.costs.count_by_role()
    assert (use.system, use.user) == (8, 3 + 5)
    assert use.assistant == (3 + 1 + 2) + (2 + 1 + 4) if keep_reasoning == "on" else 2 + 4
    assert (
        use.system + use.user + use.assistant + use.template == use.total == chat.session.costs.count_tokens()
    )
    assert use.context_length == 4096


def test_before_the_first_turn_nothing_is_in_the_context() -> None:
    chat = scripted_chat(CHATML, system="S.")
    assert chat.session.costs.count_by_role() == ContextUse(0, 0, 0, 0, 0, 4096)


def test_turns_left_out_of_the_prompt_are_not_counted() -> None:
    chat = hash_chat(CHATML)
    for text in ("one", "two"):
        chat.say(text)
    chat.session.leave_out(1)
    assert chat.session.costs.count_by_role().user == 3


# What a change would cost

CHANGES: dict[str, tuple[Callable[[Turns], Turns], Callable[[Any], object]]] = {
    "nothing": (lambda turns: turns, lambda session: None),
    "undo": (lambda turns: turns[:-1], lambda session: session.undo()),
    "rewind": (lambda turns: turns[:1], lambda session: session.rewind(1)),
    "forget": (lambda turns: turns[1:], lambda session: session.forget()),
    "all": (lambda turns: (), lambda session: session.rewind(0)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_change_would_leave_in_the_cache_is_what_the_next_turn_reuses(name: str, change: str) -> None:
    chat = hash_chat(FAMILIES[name], system="Be kind.", max_tokens="6")
    for text in ("one", "two", "three"):
        chat.say(text)
    after, make = CHANGES[change]
    record = chat.record
    cost = chat.session.costs.recomputed_after(after(chat.session.conversation.turns))
    assert chat.record == record
    make(chat.session)
    assert cost.n_prompt == chat.session.costs.count_tokens() or not chat.session.conversation.turns
    reused, n_in_cache = chat.say("next").raw.reused_prefix_tokens, cost.n_prompt - cost.n_recomputed
    # Where all of it is in the cache, the next message may begin as one did that was taken back.
    assert reused == n_in_cache if cost.n_recomputed else reused >= n_in_cache


def test_another_system_prompt_costs_all_that_comes_after_it() -> None:
    chat = hash_chat(CHATML, system="Be kind.")
    chat.say("one")
    turns = chat.session.conversation.turns
    assert chat.session.costs.recomputed_after(turns).n_recomputed < 5  # what ends the reply
    for system in ("Be cruel.", None):
        cost = chat.session.costs.recomputed_after(turns, system=system)
        assert cost.n_recomputed > cost.n_prompt - 30 > 20
        assert (chat.session.conversation.system, chat.session.conversation.turns) == ("Be kind.", turns)


def test_after_a_fault_and_after_a_cancel_what_is_left_in_the_cache_is_known() -> None:
    chat = hash_chat(CHATML)
    chat.say("one")
    turns = chat.session.conversation.turns
    cheap = chat.session.costs.recomputed_after(turns)
    chat.say("two", CancelAfter(1))
    assert chat.session.costs.recomputed_after(turns).n_recomputed <= cheap.n_recomputed
    model = chat.producer._model  # type: ignore[attr-defined]
    model.on_boundary = lambda name: 1 / 0
    with pytest.raises(ZeroDivisionError):
        chat.say("two")
    assert chat.session.costs.recomputed_after(turns).n_recomputed <= cheap.n_recomputed
    assert chat.session.model.states.held_ids == chat.record
    model.on_boundary = lambda name: None
    chat.say("two")
    assert chat.session.costs.recomputed_after(turns).n_recomputed == 0


def test_explaining_changes_no_cost() -> None:
    chat = hash_chat(CHATML)
    chat.say("one")
    turns = chat.session.conversation.turns
    cost = chat.session.costs.recomputed_after(turns)
    chat.session.explain(2, n_alternatives=1, cancel=NEVER)
    assert chat.session.costs.recomputed_after(turns) == cost


def test_forgetting_what_the_prompt_leaves_out_anyway_costs_nothing() -> None:
    chat = hash_chat(CHATML)
    for text in ("one", "two", "three"):
        chat.say(text)
    chat.session.leave_out(1)
    chat.say("four")
    turns = chat.session.conversation.turns
    assert chat.session.costs.recomputed_after(turns[1:]) == chat.session.costs.recomputed_after(turns)
    assert chat.session.costs.recomputed_after(turns[2:]).n_recomputed > 20


def test_a_conversation_that_will_not_fit_costs_what_is_left_of_it() -> None:
    chat = hash_chat(CHATML, context_length=120, max_tokens="8")
    chat.say("one")
    turns = chat.session.conversation.turns
    cost = chat.session.costs.recomputed_after(turns * 5)
    assert 0 < cost.n_prompt <= 112
    cost = chat.session.costs.recomputed_after(turns, system="s" * 200)
    assert cost.n_recomputed == cost.n_prompt > 120


def test_another_template_and_a_restored_conversation_find_the_cache_as_it_is_and_another_model_none() -> (
    None
):
    chat = hash_chat(CHATML)
    chat.say("one")
    session, turns = chat.session, chat.session.conversation.turns
    cost = session.costs.recomputed_after(turns)
    session.set_model(session.model.with_template(CHATML.source))
    session.restore(session.conversation)
    assert session.costs.recomputed_after(turns) == cost
    session.set_model(replace(session._model, producer=hash_runner(), states=None))
    assert session.costs.recomputed_after(turns).n_recomputed == cost.n_prompt
