"""The run on a cache that other runs left behind: it replies as a cold engine does, and computes only what is new."""

import itertools
import math

import numpy as np
import pytest
from checked_engine import GREEDY, IDS, MODELS, TEN, Engine, Flag, cold, every_feeding, every_model
from fakes import HashModel, PieceTable, RecurrentModel
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark_chat.engine.completion import CompletionConfig, PrefillMode, StopReason
from turbospark_chat.engine.progress import Tail
from turbospark_chat.engine.raw_completion import run_raw_completion
from turbospark_chat.engine.reuse_miss import MissCause, ReuseMiss
from turbospark_chat.engine.sampler import Sampler
from turbospark_chat.engine.sampling_config import SamplingConfig


@every_feeding
def test_the_last_sampled_token_is_no_part_of_the_record_before_it_is_fed(feeding):  # case 1
    engine = Engine()
    first = engine.run([5, 11, 23, 42], max_new_tokens=4, stop_ids={12: StopReason.EOS}, **feeding)
    assert (first.token_ids, first.reason) == ((43, 2, 56), StopReason.EOS)
    assert first.kv_backed_token_ids == (5, 11, 23, 42, 43, 2, 56)
    second = engine.run([5, 11, 23, 42, 43, 2, 56, 12, 70, 71], max_new_tokens=1, **feeding)
    assert (engine.n_evaluated, second.token_ids) == (3, (85,))


LONG = [index * 7 % 97 for index in range(300)]


@every_feeding
@pytest.mark.parametrize(
    ("model", "earlier", "prompt_ids", "n_prefilled", "reply"),
    [
        pytest.param("full", [[5, 11, 23, 42]], [5, 11, 23, 42], 1, [43], id="2-same-prompt"),
        pytest.param("full", [[5]], [5], 1, [12], id="2-one-id"),
        pytest.param("window 2", [[5, 11, 23, 42]], [5, 11, 23, 42], 1, [], id="2-wrapped-ring"),
        pytest.param("recurrent", [[5, 11, 23, 42]], [5, 11, 23, 42], 4, [], id="2-recurrent-starts-over"),
        pytest.param("marked", [[5, 11, 23, 42]], [5, 11, 23, 42], 1, [], id="2-recurrent-with-marks"),
        pytest.param(
            "window 4", [[*range(10, 22)]], [*range(10, 19), 60], 10, [84, 51, 70], id="5-rows-gone"
        ),
        pytest.param("full", [[*range(10, 22)]], [*range(10, 19), 60], 1, [26, 1, 0], id="5-full-keeps-them"),
        pytest.param("recurrent", [[5, 11, 23, 42]], [5, 11, 9], 3, [1], id="6-no-rewind"),
        pytest.param("recurrent", [[5, 11, 23, 42]], [5, 11, 23, 42, 9], 1, [], id="6-recurrent-continues"),
        pytest.param("window 4", [[*range(12)]], [*range(12)], 1, [], id="A8-window-is-still-there"),
        pytest.param("full", [[*range(40)]], [*range(12)], 1, [], id="A12-shorter-prompt"),
        pytest.param("full", [[*range(40)]], [0], 1, [], id="A12-one-id"),
        pytest.param("full", [[1, 10, 11]], [1, 20, 21], 2, [], id="A13-only-bos-shared"),
        pytest.param("full", [[*range(20)], [3, 4]], [*range(20)], 20, [], id="A15-another-in-between"),
        pytest.param("full", [[*range(20)]], [3, 4], 2, [], id="A15-nothing-shared"),
        *(
            pytest.param("full", [LONG], [*LONG[:n], (LONG[n] + 1) % 97], 1, [], id=f"A17-prefix-of-{n}")
            for n in (255, 256, 257, 280)
        ),
    ],
)
def test_only_what_is_not_cached_is_computed_and_the_reply_is_a_cold_ones(
    model, earlier, prompt_ids, n_prefilled, reply, feeding
):
    engine = Engine(MODELS[model]())
    for ids in earlier:
        engine.run(ids, max_new_tokens=1, **feeding)
    result = engine.run(prompt_ids, max_new_tokens=3, **feeding)
    assert result.prefilled_tokens == n_prefilled
    assert list(result.token_ids[: len(reply)]) == reply
    assert result.token_ids == cold(MODELS[model], prompt_ids, max_new_tokens=3)


def test_a_recurrent_state_is_rebuilt_not_fed_on():  # case 6
    engine = Engine(RecurrentModel())
    engine.run([5, 11, 23, 42], is_prefill_only=True)
    assert engine.runner.state.value == 3809
    engine.run([5, 11, 9], is_prefill_only=True)
    assert engine.runner.state.value == 5918


def test_the_cost_of_a_turn_does_not_grow_with_the_conversation():  # G8, T48, T52
    engine, ids = Engine(), []
    for turn in range(30):
        ids += [turn, *range(19)]
        result = engine.run(ids, max_new_tokens=20)
        # After the first turn one more: the last token of the reply before was sampled, but never fed.
        assert result.prefilled_tokens == 20 + (turn > 0)
        ids += result.token_ids
    assert result.token_ids == cold(HashModel, ids[:-20], max_new_tokens=20)


@every_model
def test_without_reuse_every_prompt_is_computed_whole(make_model):  # T61
    engine = Engine(make_model())
    replies = [engine.run([5, 11, 23, 42], max_new_tokens=5, reuse=False) for _ in range(2)]
    assert [reply.reused_prefix_tokens for reply in replies] == [0, 0]
    assert engine.n_evaluated == 8
    assert replies[0].token_ids == replies[1].token_ids


def test_a_tainted_record_is_computed_anew_once_and_then_serves_again():
    engine = Engine()
    engine.run(TEN, max_new_tokens=1)
    engine.runner.record.taint()
    reused = [engine.run(TEN, max_new_tokens=1).reused_prefix_tokens for _ in range(2)]
    assert reused == [0, 9]


def test_a_slot_is_reported_evicted_by_the_turn_that_evicted_it():
    engine = Engine(n_slots=0)
    evicted = [
        engine.run(prompt_ids, max_new_tokens=1, reuse=reuse).session_slot_evicted
        for prompt_ids, reuse in [([1, 2], True), ([1, 2, 3], True), ([7, 8], True), ([7, 8], False)]
    ]
    assert evicted == [False, False, True, False]


def test_a_result_says_what_was_missed_of_its_prompt():
    engine = Engine(n_slots=1)
    misses = [
        engine.run(prompt_ids, max_new_tokens=1, reuse=reuse).miss
        for prompt_ids, reuse in [
            ([1, 2, 3, 4], True),
            ([1, 2, 9, 9], True),
            ([1, 2, 9, 9], True),
            ([7, 8], False),
        ]
    ]
    assert misses == [None, ReuseMiss(MissCause.DIFFERS, 2, 2, held_id=3, prompt_id=9), None, None]


@pytest.mark.parametrize("cancel", [Flag(), Flag(polls=0)], ids=["runs", "cancelled before it starts"])
def test_a_producer_that_keeps_the_whole_prompt_is_fed_its_last_id_again(cancel):
    engine = Engine()
    engine.run([5, 11, 23, 42], max_new_tokens=1)
    engine.runner.try_reuse_prefix = lambda prompt_ids: len(prompt_ids)
    result = run_raw_completion(
        engine.runner, IDS, [5, 11, 23, 42], CompletionConfig(sampling=GREEDY, max_new_tokens=1),
        max_context=9, cancel=cancel, on_progress=lambda event: None,
    )  # fmt: skip
    assert result.reused_prefix_tokens == 3
    assert result.kv_position == 4 == len(engine.runner.state)
    assert result.token_ids == (() if cancel.is_set() else (43,))


# Case 3: an exception at every boundary


class Interrupt:
    """Raises KeyboardInterrupt when a boundary is passed for the n-th time."""

    def __init__(self, boundary: str, nth: int) -> None:
        self._boundary, self._left = boundary, nth

    def pass_by(self, boundary: str) -> None:
        self._left -= boundary == self._boundary
        if boundary == self._boundary and self._left == 0:
            raise KeyboardInterrupt


N_REPLY = 4
BOUNDARIES = (
    "before a chunk",
    "after its write",
    "after its commit",
    "before sampling",
    "after sampling",
    "in the event sink",
)


@every_feeding
@pytest.mark.parametrize(
    ("model", "boundary"),
    [
        *itertools.product(["full", "window 4"], BOUNDARIES),
        # A recurrent state is written and committed at once.
        *itertools.product(["recurrent"], [name for name in BOUNDARIES if name != "after its write"]),
    ],
)
def test_an_interrupt_at_any_boundary_leaves_record_and_cache_agreeing(monkeypatch, model, boundary, feeding):
    sample = Sampler.sample

    def watched_sample(sampler, *arguments):
        interrupt.pass_by("before sampling")
        token = sample(sampler, *arguments)
        interrupt.pass_by("after sampling")
        return token

    monkeypatch.setattr(Sampler, "sample", watched_sample)
    make_model = MODELS[model]
    for nth in itertools.count(1):
        engine, interrupt = Engine(make_model()), Interrupt(boundary, nth)
        engine.model.on_boundary = interrupt.pass_by
        try:
            engine.run(
                TEN, max_new_tokens=N_REPLY, **feeding,
                on_event=lambda event, interrupt=interrupt: interrupt.pass_by("in the event sink"),
            )  # fmt: skip
        except KeyboardInterrupt:
            assert engine.of_type(Tail) == engine.events[-1:]
        else:
            break
        for prompt_ids, next_id in [([30, 31, 32, 80], 93), (TEN, 37)]:
            reply = engine.run(prompt_ids, max_new_tokens=1).token_ids
            assert reply == cold(make_model, prompt_ids, max_new_tokens=1)
            assert model != "full" or reply == (next_id,)
    n_chunks = math.ceil(len(TEN) / feeding.get("chunk_size", 1))
    n_passed = {
        "before sampling": N_REPLY,
        "after sampling": N_REPLY,
        "in the event sink": n_chunks + N_REPLY + 1,
    }
    # A state that cannot go back is marked before a prompt's last token, which is fed by itself then.
    is_split = model == "recurrent" and len(TEN) > 1 + (n_chunks - 1) * feeding.get("chunk_size", 1)
    n_passes = n_chunks + is_split + N_REPLY - 1
    assert nth - 1 == n_passed.get(boundary, n_passes), "every point was interrupted once"


# Sampling does not see how the prompt came into the cache


@pytest.fixture
def penalised(monkeypatch):
    """Return the list that collects the scores of every sampling."""
    seen: list[np.ndarray] = []
    process_logits = Sampler.process_logits

    def watched(sampler, *arguments):
        seen.append(process_logits(sampler, *arguments))
        return seen[-1]

    monkeypatch.setattr(Sampler, "process_logits", watched)
    return seen


PENALTIES = SamplingConfig(
    temperature=0, repetition_penalty=1.3, repetition_window=6, presence_penalty=0.25, frequency_penalty=0.5
)


@every_feeding
@pytest.mark.parametrize("is_cached", [False, True], ids=["cold", "cached"])
def test_penalised_logits_are_the_same_cold_cached_and_in_any_chunks(penalised, is_cached, feeding):  # D10
    expected = cold(HashModel, TEN, max_new_tokens=12, sampling=PENALTIES)
    expected_scores = penalised.copy()
    engine = Engine()
    if is_cached:
        engine.run([*TEN, 1], is_prefill_only=True)
    penalised.clear()
    assert engine.run(TEN, max_new_tokens=12, sampling=PENALTIES, **feeding).token_ids == expected
    np.testing.assert_array_equal(penalised, expected_scores)


def test_presence_and_frequency_penalties_count_the_reply_alone(penalised):  # D10
    always_9 = {"logit_bias": {9: 100}, "temperature": 0}
    bias_only, penalties = (
        SamplingConfig(**always_9),
        SamplingConfig(**always_9, frequency_penalty=0.5, presence_penalty=0.25),
    )
    for sampling in (bias_only, penalties):
        assert cold(HashModel, [5, 5, 9], max_new_tokens=2, sampling=sampling) == (9, 9)
    plain, changed = penalised[1], penalised[3]
    assert {int(i): changed[i] - plain[i] for i in np.flatnonzero(changed != plain)} == {9: -0.75}


@every_feeding
def test_a_seed_gives_the_same_reply_warm_or_cold_and_after_another(feeding):  # D11, T55
    def run(seed, prompt_ids=TEN):
        flat = SamplingConfig(temperature=5, top_k=0, top_p=1, min_p=0, seed=seed)
        return engine.run(prompt_ids, max_new_tokens=20, sampling=flat, **feeding).token_ids

    engine = Engine()
    first = run(42)
    assert run(42) == first
    run(7, [1, 2, 3])
    assert run(42) == first
    zero = run(0)
    assert run(0) == zero != first
    assert run(None) != run(None)


@every_feeding
def test_padding_rows_of_the_output_head_never_win(feeding):  # B4
    known = PieceTable(dict.fromkeys(range(40), b"x"))
    engine = Engine()
    reply = engine.run(TEN, max_new_tokens=50, tokenizer=known, **feeding).token_ids
    assert max(reply) < 40
    assert max(cold(HashModel, TEN, max_new_tokens=50)) >= 40, "without the tokenizer's limit they would"


# Any sequence of runs on one runner replies as cold ones do


STEP = st.fixed_dictionaries(
    {
        "n_shared": st.integers(0, 30),  # ids of what the cache holds that the prompt starts with, at most
        "new_ids": st.lists(st.integers(0, 96), min_size=1, max_size=8),
        "polls": st.just(math.inf) | st.integers(0, 12),  # looks at the flag until it is up
        "stop_at": st.none() | st.integers(0, 6),  # the reply's token that is made a stop token
        "max_new_tokens": st.integers(1, 8),
        "reuse": st.sampled_from([True, True, True, False]),
        "prefill_mode": st.sampled_from(PrefillMode),
        "chunk_size": st.sampled_from([1, 2, 3, 5, 64]),
    }
)


@pytest.mark.parametrize("n_slots", [None, 1], ids=["one state", "a parked state"])
@every_model
@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEP, min_size=2, max_size=6))
def test_any_sequence_of_runs_replies_as_cold_engines_do(make_model, n_slots, steps):
    engine = Engine(make_model(), n_slots=n_slots)
    for step in steps:
        changes = dict(step)
        prompt_ids = [*engine.runner.record.ids[: changes.pop("n_shared")], *changes.pop("new_ids")]
        polls, stop_at, budget = changes.pop("polls"), changes.pop("stop_at"), changes["max_new_tokens"]
        expected, reason = cold(make_model, prompt_ids, max_new_tokens=budget), StopReason.MAX_TOKENS
        if stop_at is not None and stop_at < budget:
            changes["stop_ids"] = {expected[stop_at]: StopReason.END_OF_TURN}
            expected, reason = expected[: expected.index(expected[stop_at])], StopReason.END_OF_TURN
        result = engine.run(prompt_ids, cancel=Flag(polls=polls), **changes)
        if result.reason is StopReason.CANCELLED:
            assert polls < math.inf
            assert result.token_ids == expected[: result.new_tokens]
        else:
            assert (result.token_ids, result.reason) == (expected, reason)
