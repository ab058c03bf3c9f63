"""The run's contract: what it refuses, reports and returns, how it ends, how it is cancelled and paced."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from checked_engine import TEN, TEN_REPLY, Clock, Engine, Flag, cold, every_feeding, every_model
from fakes import HashModel, PieceTable

from turbospark_chat.engine.completion import PrefillMode, RawDecodeResult, StopReason
from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.pressure import MemoryPressure, ThermalState
from turbospark_chat.engine.progress import Prefill, Progress, Tail, Token
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.errors import (
    ContextOverflowError,
    EmptyPromptError,
    NoFiniteLogitsError,
    SettingError,
    ZeroBudgetError,
)

# Admission: refused before anything was touched


@pytest.mark.parametrize(
    ("prompt_ids", "changes", "error", "message"),
    [
        pytest.param([], {}, EmptyPromptError, "0 tokens", id="A12-empty-prompt"),
        pytest.param([1, 2], {"max_new_tokens": 0}, ZeroBudgetError, "max tokens is 0", id="C11-zero-budget"),
        pytest.param(
            range(60), {"max_new_tokens": 5}, ContextOverflowError,
            "60 prompt tokens and 5 for the reply exceed 64", id="G4-one-too-many",
        ),
        pytest.param(
            range(64), {}, ContextOverflowError, "64 prompt tokens and 1 for the reply exceed 64", id="G4-full"
        ),
        pytest.param(range(90), {}, ContextOverflowError, "90 prompt tokens", id="T62-longer-than-the-context"),
        pytest.param(
            [1, 2], {"sampling": SamplingConfig(logit_bias={97: 1})}, SettingError, "97", id="D13-bias-outside"
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_its_numbers_and_touches_nothing(prompt_ids, changes, error, message):
    engine = Engine()
    engine.run([1, 2, 3], max_new_tokens=3)
    held = engine.runner.record.ids
    with pytest.raises(error, match=message):
        engine.run(prompt_ids, max_context=64, **changes)
    assert (engine.runner.record.ids, engine.n_evaluated, engine.events) == (held, 0, [])
    assert engine.run(held, max_new_tokens=1).prefilled_tokens == 1


@pytest.mark.parametrize("stop_strings", [("",), ("END", "")])
def test_an_empty_stop_string_is_refused_before_anything_was_touched(stop_strings):  # C4
    engine = Engine()
    with pytest.raises(SettingError, match="stop is ''"):
        engine.run([1, 2], stop_strings=stop_strings)
    assert (engine.n_evaluated, engine.events) == (0, [])


def test_the_numbers_of_an_overflow_can_be_read():  # G4
    with pytest.raises(ContextOverflowError) as caught:
        Engine().run(range(60), max_context=64, max_new_tokens=5)
    error = caught.value
    assert (error.n_prompt, error.n_reserved, error.context_length) == (60, 5, 64)


@pytest.mark.parametrize(
    ("max_context", "n_prompt", "max_new_tokens", "n_new"),
    [
        pytest.param(1024, 100, None, 924, id="G4-all-that-is-left"),
        pytest.param(1024, 1023, None, 1, id="G4-room-for-one"),
        pytest.param(1024, 1000, 24, 24, id="G4-exactly-full"),
        pytest.param(64, 60, None, 4, id="C11-at-most-four"),
        pytest.param(64, 10, 1, 1, id="C11-one-is-one"),
    ],
)
def test_the_budget_is_what_was_asked_or_what_is_left(max_context, n_prompt, max_new_tokens, n_new):
    prompt_ids = [index % 97 for index in range(n_prompt)]
    result = Engine().run(prompt_ids, max_context=max_context, max_new_tokens=max_new_tokens)
    assert (result.new_tokens, result.reason) == (n_new, StopReason.MAX_TOKENS)
    assert result.kv_position == n_prompt + n_new - 1


# Events


def test_prompt_progress_follows_each_commit_then_tokens_then_one_tail():
    engine, held = Engine(), []
    engine.run(
        TEN, max_new_tokens=3, chunk_size=4, on_event=lambda event: held.append(len(engine.runner.record))
    )
    assert engine.events == [
        Prefill(4, 10, 0), Prefill(8, 10, 0), Prefill(10, 10, 0),
        Token(37, "37 "), Token(36, "36 "), Token(67, "67 "),
        Tail("", False),
    ]  # fmt: skip
    assert held == [4, 8, 10, 10, 11, 12, 12]


def test_progress_by_token_starts_after_what_was_reused():
    engine = Engine()
    engine.run(TEN[:7], max_new_tokens=1)
    engine.run(TEN, max_new_tokens=1, prefill_mode=PrefillMode.TOKENS)
    assert engine.events[:3] == [Prefill(8, 10, 7), Prefill(9, 10, 7), Prefill(10, 10, 7)]


@every_feeding
def test_only_the_last_prompt_token_needs_the_output_head(feeding):
    engine, heads = Engine(), []
    forward = engine.model.forward

    def watched(tokens, state, *, need_logits):
        heads.append(need_logits)
        return forward(tokens, state, need_logits=need_logits)

    engine.model.forward = watched
    engine.run(TEN, max_new_tokens=1, **feeding)
    assert heads == [False] * (len(heads) - 1) + [True]
    assert len(heads) == len(engine.of_type(Prefill))


@pytest.mark.parametrize("reason", [StopReason.END_OF_TURN, StopReason.TOOL_CALLS, StopReason.EOS])
def test_a_stop_id_ends_the_reply_with_its_own_reason_and_is_not_part_of_it(reason):  # 13
    engine = Engine()
    result = engine.run(TEN, max_new_tokens=9, stop_ids={59: reason, 12: StopReason.EOS})
    assert (result.reason, result.token_ids, engine.text) == (reason, TEN_REPLY[:3], "37 36 67 ")
    assert result.kv_backed_token_ids == (*TEN, *TEN_REPLY[:3])


# Every ending shows the same text and leaves record and cache agreeing


REPLY_STARTS = [5, 11, 23, 42]  # the reply to this is 43, 2, 56, 12
HALF_STOP = PieceTable({43: b"ab", 2: b"XY", 56: b"Z", 12: b"(end)", 96: b""})


def stopped_by(ending: str, engine: Engine) -> dict[str, object]:
    """Return the settings that end the reply after its third token in that way."""
    flag = Flag()

    def cancel(event):
        if event == Token(56, ""):
            flag.set()

    def fail(name):
        if name == "before a chunk" and len(engine.runner.record) == 6:
            raise MemoryError

    match ending:
        case "eos":
            return {"stop_ids": {12: StopReason.EOS}}
        case "max_tokens":
            return {"max_new_tokens": 3}
        case "cancelled":
            return {"cancel": flag, "on_event": cancel}
        case "cancelled while pacing":
            clock = Clock()
            flag = Flag(raised_in_wait=2, clock=clock)  # the first token goes at once
            return {"cancel": flag, "clock": clock, "max_tokens_per_sec": 1.0}
    engine.model.on_boundary = fail
    return {}


@every_feeding
@pytest.mark.parametrize("ending", ["eos", "max_tokens", "cancelled", "cancelled while pacing", "error"])
def test_a_held_stop_prefix_is_released_however_the_reply_ends(ending, feeding):  # case 11, T55, T56
    engine = Engine()
    how = stopped_by(ending, engine)
    try:
        result = engine.run(REPLY_STARTS, tokenizer=HALF_STOP, stop_strings=("XYZ\n##",), **how, **feeding)
    except MemoryError:
        assert ending == "error"
    else:
        assert ending.startswith(result.reason)
        assert result.token_ids == (43, 2, 56)
    assert engine.text == "abXYZ"
    assert engine.of_type(Tail) == [Tail("XYZ", False)] == engine.events[-1:]
    engine.model.on_boundary = lambda name: None
    assert engine.run([*REPLY_STARTS, 43, 2, 56, 9], max_new_tokens=4).token_ids == cold(
        HashModel, [*REPLY_STARTS, 43, 2, 56, 9], max_new_tokens=4
    )


@pytest.mark.parametrize(
    ("third", "texts", "tail", "reason"),
    [
        pytest.param(b"opq", ["k", "", ""], "", StopReason.STOP_STRING, id="12-over-three-tokens"),
        pytest.param(b"x", ["k", "", "lmnx"], "", StopReason.MAX_TOKENS, id="12-false-alarm"),
        pytest.param(b"o", ["k", "", ""], "lmno", StopReason.MAX_TOKENS, id="11-released-at-the-limit"),
        pytest.param(b"\xe9\xbe", ["k", "", ""], "lmn\ufffd", StopReason.MAX_TOKENS, id="8-half-a-character"),
    ],
)
def test_a_stop_string_over_several_tokens(third, texts, tail, reason):
    engine = Engine()
    pieces = PieceTable({43: b"kl", 2: b"mn", 56: third, 96: b""})
    result = engine.run(REPLY_STARTS, tokenizer=pieces, stop_strings=("lmnop",), max_new_tokens=3)
    assert result.reason is reason
    assert [event.text for event in engine.of_type(Token)] == texts
    assert engine.of_type(Tail) == [Tail(tail, has_partial_character=tail.endswith("\ufffd"))]


def test_after_a_stop_string_the_next_turn_keeps_what_came_before_it():  # C7
    engine = Engine()
    pieces = PieceTable({43: b"k", 2: b"lm", 56: b"nop", 96: b""})
    first = engine.run(REPLY_STARTS, tokenizer=pieces, stop_strings=("lmnop",))
    assert (engine.text, first.kv_backed_token_ids) == ("k", (*REPLY_STARTS, 43, 2))
    next_prompt = [*REPLY_STARTS, 43, 8]  # the reply as it was shown, and a new message
    second = engine.run(next_prompt, max_new_tokens=3)
    assert second.reused_prefix_tokens == 5
    assert second.token_ids == cold(HashModel, next_prompt, max_new_tokens=3)


def test_logits_without_a_choice_end_the_run_with_the_prompt_kept():
    engine = Engine()
    engine.model.logits = lambda state: np.full(97, np.nan, np.float32)
    with pytest.warns(UserWarning, match="NaN"), pytest.raises(NoFiniteLogitsError):
        engine.run(TEN)
    assert engine.runner.record.ids == tuple(TEN)
    assert engine.events[-1] == Tail("", False)


@pytest.mark.parametrize("method", ["try_reuse_prefix", "reset"])
def test_an_error_while_going_back_feeds_nothing_and_still_ends_with_a_tail(method):
    def fail(*arguments):
        raise OSError

    engine = Engine()
    setattr(engine.runner, method, fail)
    with pytest.raises(OSError):
        engine.run(TEN)
    assert (engine.n_evaluated, engine.events) == (0, [Tail("", False)])


# Cancel


def flag_at(engine: Engine, kind: type[Progress], nth: int) -> dict[str, object]:
    """Return the settings that raise the flag on the run's n-th event of a kind."""
    flag = Flag()

    def take(event):
        if isinstance(event, kind) and len(engine.of_type(kind)) == nth:
            flag.set()

    return {"cancel": flag, "on_event": take}


@every_feeding
@every_model
def test_cancelled_before_it_starts_nothing_runs(make_model, feeding):  # T5
    engine = Engine(make_model())
    engine.run(TEN[:6], max_new_tokens=1, **feeding)
    result = engine.run(TEN, cancel=Flag(polls=0), **feeding)
    assert engine.n_evaluated == 0
    assert (result.reason, result.kv_position, result.prefill_rate) == (StopReason.CANCELLED, 6, None)
    assert engine.events == [Tail("", False)]


@every_model
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_cancelled_in_prefill_the_result_is_ordinary_and_the_chunks_done_are_kept(make_model, nth):  # T5
    engine = Engine(make_model())
    result = engine.run(TEN, chunk_size=3, **flag_at(engine, Prefill, nth))
    done = min(3 * nth, 10)
    assert engine.n_evaluated == result.kv_position == done
    assert (result.reason, result.new_tokens, result.decode_seconds) == (StopReason.CANCELLED, 0, 0.0)
    assert result.decode_rate is None
    assert [type(event) for event in engine.events] == [Prefill] * nth + [Tail]
    again = engine.run([*TEN, 1], max_new_tokens=3)
    assert again.reused_prefix_tokens == done
    assert again.token_ids == cold(make_model, [*TEN, 1], max_new_tokens=3)


@every_feeding
@every_model
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_cancelled_in_decode_the_partial_reply_is_kept_and_nothing_more_runs(make_model, nth, feeding):  # T5
    engine = Engine(make_model())
    whole = cold(make_model, TEN, max_new_tokens=4)
    result = engine.run(TEN, **flag_at(engine, Token, nth), **feeding)
    assert (result.reason, result.token_ids) == (StopReason.CANCELLED, whole[:nth])
    assert engine.n_evaluated == result.kv_position == 10 + nth - 1
    again = engine.run([*TEN, *whole[:nth], 1], max_new_tokens=3)
    assert again.prefilled_tokens == 2  # the token that was sampled but not fed, and the new one
    assert again.token_ids == cold(make_model, [*TEN, *whole[:nth], 1], max_new_tokens=3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"max_new_tokens": 2}, StopReason.MAX_TOKENS, id="budget"),
        pytest.param({"stop_strings": ("6 ",)}, StopReason.STOP_STRING, id="stop-string"),
        pytest.param(
            {"stop_strings": ("6 ",), "max_new_tokens": 2}, StopReason.STOP_STRING, id="string-first"
        ),
        pytest.param({}, StopReason.CANCELLED, id="nothing-else"),
    ],
)
def test_a_run_that_ended_on_its_own_terms_says_so_with_the_flag_up(changes, reason):
    engine = Engine()
    result = engine.run(TEN, **changes, **flag_at(engine, Token, 2))
    assert (result.reason, result.new_tokens) == (reason, 2)


def test_a_stop_token_counts_though_the_flag_went_up_while_it_was_computed():
    engine, flag = Engine(), Flag()
    engine.model.on_boundary = lambda name: flag.set() if len(engine.runner.record) == 12 else None
    result = engine.run(TEN, cancel=flag, stop_ids={59: StopReason.END_OF_TURN}, max_new_tokens=3 + 1)
    assert (result.reason, result.token_ids) == (StopReason.END_OF_TURN, TEN_REPLY[:3])


# Prefill alone: what a budget of zero means. C11


@every_feeding
@every_model
def test_prefill_alone_brings_the_prompt_into_the_cache_and_says_nothing(make_model, feeding):
    engine = Engine(make_model())
    result = engine.run(TEN, is_prefill_only=True, max_new_tokens=0, max_context=10, **feeding)
    assert (result.reason, result.new_tokens, result.kv_position) == (StopReason.MAX_TOKENS, 0, 10)
    assert (result.decode_seconds, result.decode_rate, engine.text) == (0.0, None, "")
    after = engine.run([*TEN, 1], max_new_tokens=3)
    assert after.prefilled_tokens == 1
    assert after.token_ids == cold(make_model, [*TEN, 1], max_new_tokens=3)


@pytest.mark.parametrize(
    ("nth", "reason"),
    [
        (0, StopReason.CANCELLED),
        (1, StopReason.CANCELLED),
        (3, StopReason.MAX_TOKENS),
        (4, StopReason.MAX_TOKENS),
    ],
)
def test_prefill_alone_is_cancelled_only_while_something_is_left_of_it(nth, reason):
    engine = Engine()
    how = flag_at(engine, Prefill, nth) if nth else {"cancel": Flag(polls=0)}
    result = engine.run(TEN, is_prefill_only=True, chunk_size=4, **how)
    assert (result.reason, result.kv_position) == (reason, min(4 * nth, 10))


@pytest.mark.parametrize(
    ("prompt_ids", "changes", "error"),
    [
        ([], {}, EmptyPromptError),
        (TEN, {"max_context": 9}, ContextOverflowError),
        (TEN, {"sampling": SamplingConfig(logit_bias={97: 1})}, SettingError),
    ],
)
def test_prefill_alone_refuses_before_anything_was_touched(prompt_ids, changes, error):
    engine = Engine()
    with pytest.raises(error):
        engine.run(prompt_ids, is_prefill_only=True, **changes)
    assert (engine.n_evaluated, engine.events) == (0, [])


# Time


def test_no_rate_comes_from_a_clock_that_stands_still():
    result = Engine().run(TEN, max_new_tokens=3, clock=lambda: 7.0)
    assert (result.prefill_seconds, result.decode_seconds) == (0.0, 0.0)
    assert (result.prefill_rate, result.decode_rate) == (None, None)


def test_an_empty_reply_has_no_decode_rate():  # H14
    engine = Engine()
    result = engine.run(TEN, stop_ids={37: StopReason.EOS})
    assert (result.new_tokens, result.decode_rate, engine.text) == (0, None, "")


def test_prefill_and_decode_are_timed_apart():
    engine = Engine()
    clock = Clock()

    def pass_a_second(name):
        clock.now += name == "before a chunk"

    engine.model.on_boundary = pass_a_second
    result = engine.run(TEN, max_new_tokens=4, chunk_size=4, clock=clock)
    assert (result.prefill_seconds, result.decode_seconds) == (3.0, 3.0)
    assert (result.prefill_rate, result.decode_rate) == (10 / 3, 1.0)


class Probe:
    """Answers each reading's levels in turn, the last for ever; a level may be an error to raise."""

    def __init__(self, *, memory: Sequence[object] = (0,), thermal: Sequence[object] = (0,)) -> None:
        self._memory, self._thermal = list(memory), list(thermal)
        self.n_readings = 0

    def memory(self) -> MemoryPressure:
        self.n_readings += 1
        return self._next(self._memory)

    def thermal(self) -> ThermalState:
        return self._next(self._thermal)

    def _next(self, levels):
        level = levels.pop(0) if len(levels) > 1 else levels[0]
        if isinstance(level, Exception):
            raise level
        return level


def run_paced(n_tokens: int, **changes: object) -> tuple[RawDecodeResult, list[float]]:
    """Return the result and the waits of a run whose only time is its waits."""
    clock = Clock()
    flag = Flag(clock=clock)
    changes = {"power_profile": PowerProfile.BALANCED, **changes}
    result = Engine().run(TEN, max_new_tokens=n_tokens, cancel=flag, clock=clock, **changes)
    return result, flag.waits


@pytest.mark.parametrize(
    ("changes", "cap"),
    [
        pytest.param({"probe": Probe()}, None, id="G10-nominal"),
        pytest.param({"probe": None}, None, id="G10-no-sensor"),
        pytest.param({"probe": Probe(memory=[None], thermal=[None])}, None, id="G10-sensor-says-nothing"),
        pytest.param({"probe": Probe(memory=[OSError()], thermal=[OSError()])}, None, id="G10-sensor-raises"),
        pytest.param({"probe": Probe(thermal=[ThermalState.SERIOUS])}, 10.0, id="G10-serious"),
        pytest.param({"probe": Probe(thermal=[ThermalState.CRITICAL])}, 5.0, id="hot"),
        pytest.param({"probe": Probe(memory=[MemoryPressure.WARN])}, 10.0, id="memory-warn"),
        pytest.param({"max_tokens_per_sec": 4.0}, 4.0, id="cap-of-the-user"),
        pytest.param(
            {"max_tokens_per_sec": 4.0, "probe": Probe(memory=[MemoryPressure.CRITICAL])}, 4.0, id="lowest-counts"
        ),
        pytest.param({"power_profile": PowerProfile.EFFICIENCY}, 10.0, id="efficiency"),
        pytest.param(
            {"power_profile": PowerProfile.PERFORMANCE, "probe": Probe(memory=[MemoryPressure.CRITICAL])},
            None, id="performance-reads-no-probe",
        ),
    ],
)  # fmt: skip
def test_pacing_keeps_the_rate_and_never_changes_the_ids(changes, cap):  # G10
    result, waits = run_paced(33, **changes)
    assert result.token_ids == cold(HashModel, TEN, max_new_tokens=33)
    if cap is None:
        assert waits == []
    else:
        # 32 tokens are fed, and the first goes at once; nothing waits for the last, which is not fed.
        assert sum(waits) == pytest.approx(31 / cap)
        assert result.decode_rate == pytest.approx(cap, rel=0.1)


def test_critical_pressure_slows_the_next_steps_and_lifts_again():  # G6
    # Read before the prompt, before the first token and every 16 tokens.
    levels = [MemoryPressure.NORMAL, MemoryPressure.NORMAL, MemoryPressure.CRITICAL, MemoryPressure.NORMAL]
    result, waits = run_paced(60, probe=Probe(memory=levels))
    assert result.token_ids == cold(HashModel, TEN, max_new_tokens=60)
    assert result.peak_memory_pressure is MemoryPressure.CRITICAL
    assert waits == pytest.approx([0.2] * 16)


def test_the_probe_is_read_at_the_start_and_every_16_tokens():
    probe = Probe()
    run_paced(40, probe=probe)
    assert probe.n_readings == 1 + 3


def test_a_reply_too_short_for_a_second_reading_reports_the_first():
    result, _ = run_paced(1, probe=Probe(memory=[MemoryPressure.WARN]))
    assert result.peak_memory_pressure is MemoryPressure.WARN


def test_a_cancel_ends_the_wait_within_50_ms():  # G10
    delays = []
    for _ in range(3):  # the machine may be busy: one of three is enough
        cancel, cancelled_at = threading.Event(), []

        def raise_flag(cancel=cancel, cancelled_at=cancelled_at):
            cancelled_at.append(time.monotonic())
            cancel.set()

        timer = threading.Timer(0.03, raise_flag)
        timer.start()
        result = Engine().run(TEN, cancel=cancel, max_tokens_per_sec=0.1, max_new_tokens=4)
        delays.append(time.monotonic() - cancelled_at[0])
        timer.join()
        assert (result.reason, result.new_tokens, result.kv_position) == (StopReason.CANCELLED, 2, 11)
    assert min(delays) < 0.05
