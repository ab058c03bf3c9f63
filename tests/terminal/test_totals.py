"""What the turns cost together, as `/stats` shows it."""

from dataclasses import replace

import pytest

from turbospark_chat.chat.receipt import Cause, Miss
from turbospark_chat.chat.turn_result import TurnResult
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.totals import Totals


def result(*, prompt, reused, position, new, prefill=0.0, decode=0.0, reason=StopReason.END_OF_TURN):
    return RawDecodeResult(
        prompt_tokens=prompt, new_tokens=new, token_ids=(), prefill_seconds=prefill, decode_seconds=decode,
        reason=reason, kv_position=position, kv_backed_token_ids=(), reused_prefix_tokens=reused,
        session_slot_evicted=False, peak_memory_pressure=MemoryPressure.WARN,
    )  # fmt: skip


FIRST = result(prompt=100, reused=0, position=120, new=20, prefill=0.5, decode=2.0)
SECOND = result(prompt=150, reused=120, position=160, new=10, prefill=0.25, decode=0.5)
CANCELLED = result(prompt=900, reused=100, position=164, new=0, prefill=1.0, reason=StopReason.CANCELLED)


def rows(*results, **more):
    totals, turns = Totals(), [TurnResult(None, each, 0, 0, **more) for each in results]
    for turn in turns:
        totals.add(turn)
    assert totals.last is (turns[-1] if turns else None)
    _, *lines = Painter(color=False).render(totals.table(), width=80).split("\n")
    cells = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines)
    return {name: values for name, *values in cells}


def test_before_the_first_turn_there_is_nothing_to_say():
    assert rows() == {"turns": ["–", "0"]}


def test_the_last_turn_stands_beside_all_turns():
    assert rows(FIRST, SECOND) == {
        "turns": ["1", "2"],
        "prompt tokens": ["150", "250"],
        "reused from the cache": ["120", "120"],
        "computed": ["30", "130"],
        "tokens out": ["10", "30"],
        "prefill seconds": ["0.25", "0.75"],
        "decode seconds": ["0.50", "2.50"],
        "prefill rate": ["120 tok/s"],
        "decode rate": ["20 tok/s"],
        "stop reason": ["end_of_turn"],
        "peak memory pressure": ["warn"],
    }


def test_what_was_read_ahead_and_why_no_more_was_reused_is_told_where_there_is_something_to_tell():
    miss = Miss(Cause.EDITED, 95, 95, "\x1b[2J", "Yes")
    shown = rows(FIRST, SECOND, n_ahead=40, miss=miss)
    assert shown["of these read ahead"] == ["40", "80"]
    assert "\x1b" not in shown["computed again because"][0]
    assert shown["computed again because"][0].startswith("edited: position 95 is `Yes`, where `")


def test_guesses_are_counted_where_any_were_made():
    guessing = replace(SECOND, proposed_tokens=12, accepted_tokens=7)
    shown = rows(guessing, guessing, FIRST)
    assert (shown["proposed ahead"], shown["of these accepted"]) == (["0", "24"], ["0", "14"])


def test_of_a_prompt_that_was_cancelled_only_what_was_computed_counts():
    shown = rows(FIRST, CANCELLED)
    assert (shown["computed"], shown["prompt tokens"]) == (["64", "164"], ["900", "1000"])


@pytest.mark.parametrize("row", ["prefill rate", "decode rate"])
def test_where_no_time_was_measured_there_is_no_rate(row):  # H14
    assert rows(result(prompt=5, reused=0, position=5, new=0))[row] == ["–"]
