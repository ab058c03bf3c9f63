"""A turn as the JSON object that scripts read."""

import json

import pytest
from scripted_chat import make_session, send, send_and_stop

from turbospark_chat.terminal.turn_record import TurnOrigin, turn_record

ORIGIN = TurnOrigin("tiny", "compiled, 2 threads")


def record(result, origin=ORIGIN):
    return json.loads(json.dumps(turn_record(result, origin)))


def test_it_says_what_the_turn_was_and_what_it_cost():
    result = send(make_session("<think>hm</think>yes"), "hi")
    shown = record(result)
    seconds = [shown.pop("prefill_seconds"), shown.pop("decode_seconds")]
    assert seconds == pytest.approx([result.raw.prefill_seconds, result.raw.decode_seconds], abs=1e-6)
    assert shown == {
        "model": "tiny",
        "arithmetic": "compiled, 2 threads",
        "conversation_id": None,
        "turn": None,
        "reply": "yes",
        "reasoning": "hm",
        "reason": "end_of_turn",
        "token_ids": list(b"<think>hm</think>yes"),
        "prompt_tokens": 21,
        "reused_prefix_tokens": 0,
        "prefilled_tokens": 21,
        "new_tokens": 20,
        "proposed_tokens": 0,
        "accepted_tokens": 0,
        "kv_position": 41,
        "peak_memory_pressure": "normal",
        "session_slot_evicted": False,
        "miss": None,
        "truncated": False,
        "dropped_turns": 0,
        "dropped_tokens": 0,
    }


def test_a_later_turn_says_what_was_reused():  # T57
    session = make_session("yes", "no")
    send(session, "hi")
    shown = record(send(session, "and?"))
    assert (shown["reused_prefix_tokens"], shown["prefilled_tokens"], shown["prompt_tokens"]) == (24, 25, 49)


def test_it_says_where_the_turn_stands():
    shown = record(send(make_session("yes"), "hi"), TurnOrigin("tiny", "", conversation_id=7, turn=2))
    assert (shown["conversation_id"], shown["turn"]) == (7, 2)


@pytest.mark.parametrize(("n_looks", "reply"), [(0, ""), (5, "Once")], ids=["in prefill", "in decode"])
def test_a_cancelled_turn_is_an_ordinary_object(n_looks, reply):
    shown = record(send_and_stop(make_session("Once upon"), "hi", n_looks=n_looks))
    assert (shown["reason"], shown["reply"], shown["new_tokens"]) == ("cancelled", reply, len(reply))
    assert (shown["decode_seconds"] == 0.0) == (n_looks == 0)


def test_an_empty_reply_is_an_empty_string():  # H14
    shown = record(send(make_session(""), "hi"))
    assert (shown["reply"], shown["reasoning"], shown["new_tokens"], shown["token_ids"]) == ("", None, 0, [])


def test_dropped_turns_are_told():  # T63
    session = make_session("a" * 100, "b" * 100, "c", context_length=420)
    records = [record(send(session, message * 60)) for message in "xyz"]
    assert [(shown["truncated"], shown["dropped_turns"]) for shown in records] == [
        (False, 0),
        (False, 0),
        (True, 1),
    ]
    assert records[2]["dropped_tokens"] == 60 + 100 + len("[user\n]\n[assistant\n]\n")
