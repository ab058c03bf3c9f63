"""Branches and conversations that are gone to and fro keep what was computed for them."""

import pytest
from chat_templates import CHATML
from sessions import Chat, hash_chat, hash_runner

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.receipt import Cause

AMBIGUOUS = ("bc", "cd", "bcd", "df", "cdf", "gh", "hi")  # replies by bytes would be encoded otherwise


def branched(n_slots: int) -> Chat:
    """A main branch of two turns and one `b` of three, which is in use."""
    chat = hash_chat(CHATML, n_slots=n_slots, pieces=AMBIGUOUS, max_tokens="20")
    chat.say("hi")
    chat.say("and?")
    chat.session.branch_off("b")
    chat.say("on this branch " * 5)
    return chat


@pytest.mark.parametrize("n_slots", [1, 2, 4])
def test_switching_goes_on_from_the_state_that_was_parked(n_slots):
    chat = branched(n_slots)
    chat.session.switch("main")
    held = {"main": 0, "b": len(chat.record)}
    for name in ("main", "b", "main", "b"):
        chat.session.switch(name)
        result = chat.say(f"more on {name}")
        if held[name]:
            assert result.raw.reused_prefix_tokens == held[name]
            assert result.miss is None
        held[name] = result.raw.kv_position


def test_a_branch_that_another_one_goes_on_from_leaves_that_one_whole():
    chat = branched(3)
    chat.session.branch_off("c")
    on_c = chat.say("from here on c")
    chat.session.switch("main")
    chat.say("on main")
    chat.session.switch("b")
    chat.say("on b")  # whose state is the beginning of c's, which waits
    chat.session.switch("c")
    assert chat.say("more on c").raw.reused_prefix_tokens == on_c.raw.kv_position


def test_without_slots_the_branches_cut_each_other():
    chat = branched(0)
    n_held = len(chat.record)
    chat.session.switch("main")
    chat.say("more on main")
    chat.session.switch("b")
    result = chat.say("more on b")
    assert result.raw.reused_prefix_tokens < n_held
    assert result.miss.cause is Cause.EDITED  # what was said on the other branch came between


def test_a_draft_that_is_read_first_leaves_the_branch_whole_all_the_same():
    chat = hash_chat(CHATML, n_slots=2, max_tokens="20")
    chat.say("hi")
    held = chat.say("and?").raw.kv_position
    chat.session.branch_off("b")
    chat.read_ahead("never mind")
    chat.session.undo()
    chat.say("something else")
    chat.session.switch("main")
    assert chat.say("more on main").raw.reused_prefix_tokens >= held


def test_replies_keep_their_ids_however_often_another_branch_was_tried():
    chat = branched(2)
    held = len(chat.record)
    chat.session.switch("main")
    for _ in range(12):
        chat.session.undo()
        chat.say("try")
        chat.retry()
    chat.session.switch("b")
    result = chat.say("more on b")
    assert (result.raw.reused_prefix_tokens, result.miss) == (held, None)


def test_a_conversation_that_is_left_waits_as_a_branch_does():
    chat = hash_chat(CHATML, n_slots=2, max_tokens="20")
    chat.say("hi")
    held, conversation = chat.say("and?").raw.kv_position, chat.session.conversation
    kept = Conversation(system=conversation.system, turns=conversation.turns)
    chat.session.clear()
    chat.say("another matter")
    chat.session.restore(kept)
    assert chat.say("where were we?").raw.reused_prefix_tokens == held


def test_the_cost_of_going_back_is_known_before():
    chat = branched(2)
    chat.session.switch("main")
    chat.say("more on main")
    turns = chat.session.conversation.branches["b"]
    cost = chat.session.costs.recomputed_after(turns)
    assert 0 < cost.n_recomputed < 10  # what ends the reply
    chat.session.switch("b")
    assert chat.say("").raw.prefilled_tokens < 50


def test_a_third_conversation_evicts_the_one_that_waits_longest_and_its_next_turn_says_so():
    producer = hash_runner(n_slots=1)
    chats = [hash_chat(CHATML, producer=producer, n_slots=1) for _ in range(3)]
    results = [chat.say(f"I am number {index}, " * 5) for index, chat in enumerate(chats)]
    assert [result.raw.session_slot_evicted for result in results] == [False, False, True]
    assert chats[1].say("you are still here").miss is None
    miss = chats[0].say("you are not").miss
    assert miss.cause is Cause.SLOT_EVICTED
    assert miss.position < results[0].raw.kv_position


def test_two_sessions_on_one_producer_leave_each_other_whole():
    producer = hash_runner(n_slots=1)
    chats = [hash_chat(CHATML, producer=producer, n_slots=1) for _ in range(2)]
    held = [0, 0]
    for number in range(3):
        for index, chat in enumerate(chats):
            result = chat.say(f"turn {number} of {index}")
            assert result.raw.reused_prefix_tokens >= held[index]
            held[index] = result.raw.kv_position


def test_retries_and_undone_turns_park_nothing():
    chat = hash_chat(CHATML, n_slots=4)
    chat.say("hi")
    chat.retry()
    chat.session.undo()
    chat.say("hello")
    assert chat.producer.n_parked(chat.record) == 0  # type: ignore[attr-defined]
