"""The run that guesses ahead: it says, keeps, counts and reports what one without says, only in fewer passes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from checked_engine import GREEDY, IDS, TEN, Clock, Engine, Flag
from fakes import HashModel, PieceTable, RecurrentModel
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import load_tiny_model

from turbospark_chat.engine.completion import CompletionConfig, RawDecodeResult, StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import ScriptedProducer
from turbospark_chat.engine.progress import Token
from turbospark_chat.engine.raw_completion import run_raw_completion
from turbospark_chat.engine.sampler import Sampler
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.models.runner import Runner

MODELS = {
    "says one thing": lambda: HashModel(says=[5]),
    "says one thing, window 4": lambda: HashModel(says=[5], window=4),
    "says two things": lambda: HashModel(says=[1, 2]),
    "four words": lambda: HashModel(vocab_size=4),
    "four words, window 2": lambda: HashModel(vocab_size=4, window=2),
    "four words, window 4": lambda: HashModel(vocab_size=4, window=4),
    "four words, recurrent": lambda: RecurrentModel(vocab_size=4),
}
SAMPLINGS = {
    "greedy": GREEDY,
    "penalised": SamplingConfig(temperature=0, repetition_penalty=1.3, frequency_penalty=0.1),
    "seeded": SamplingConfig(temperature=0.6, top_k=0, seed=3),  # guesses of four words come true or do not
    "seeded and penalised": SamplingConfig(
        temperature=0.5, top_k=0, seed=4, repetition_penalty=1.2, repetition_window=9, presence_penalty=0.2
    ),
}
every_model = pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)
every_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)

PROMPT = [0, 1, 2, 3, 0, 1, 2]


def but_for_guesses(result: RawDecodeResult) -> RawDecodeResult:
    return replace(result, proposed_tokens=0, accepted_tokens=0)


@every_sampling
@every_model
@settings(max_examples=25, deadline=None)
@given(
    speculation=st.integers(1, 15),
    prompt_ids=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    max_new_tokens=st.integers(1, 50),
    stop_id=st.none() | st.integers(0, 5),
    stop_string=st.none() | st.text("0123 ", min_size=1, max_size=6),
    polls=st.just(1000) | st.integers(0, 40),
    rest=st.tuples(st.integers(0, 60), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
)
def test_the_whole_result_is_that_of_a_run_without(
    make_model, sampling, speculation, prompt_ids, max_new_tokens, stop_id, stop_string, polls, rest
):
    changes = {
        "max_new_tokens": max_new_tokens,
        "sampling": sampling,
        "stop_ids": {} if stop_id is None else {stop_id: StopReason.EOS},
        "stop_strings": () if stop_string is None else (stop_string,),
        "clock": lambda: 0.0,
    }
    plain, guessing = Engine(make_model()), Engine(make_model())
    expected = plain.run(prompt_ids, cancel=Flag(polls=polls), **changes)
    result = guessing.run(prompt_ids, cancel=Flag(polls=polls), speculation=speculation, **changes)
    assert (but_for_guesses(result), guessing.events) == (expected, plain.events)
    # and so is what a later run makes of the cache
    next_prompt = [*expected.kv_backed_token_ids[: rest[0]], *rest[1]]
    expected = plain.run(next_prompt, **changes)
    assert guessing.run(next_prompt, speculation=speculation, **changes).token_ids == expected.token_ids


def n_passes(model: HashModel, speculation: int) -> int:
    """Return in how many forward passes 40 tokens come."""
    engine, begun = Engine(model), []
    model.on_boundary = lambda name: begun.append(name) if name == "before a chunk" else None
    result = engine.run(PROMPT, max_new_tokens=40, speculation=speculation)
    assert result.new_tokens == 40
    return len(begun)


@pytest.mark.parametrize(
    ("model", "speculation", "expected"),
    [
        # The prompt, then a token a pass: the last is not fed.
        pytest.param("says one thing", 0, 40, id="off"),
        # A token is seen to repeat the third time: two passes, and 37 tokens are left.
        pytest.param("says one thing", 1, 1 + 2 + 19, id="one-ahead"),
        pytest.param("says one thing", 4, 1 + 2 + 8, id="four-ahead"),
        pytest.param("says one thing", 15, 1 + 2 + 3, id="fifteen-ahead"),
        pytest.param("says one thing, window 4", 15, 1 + 2 + 19, id="a-window-goes-back-by-one"),
        pytest.param("four words, recurrent", 15, 41, id="a-recurrent-state-never"),  # the prompt takes two
    ],
)
def test_where_text_repeats_the_passes_are_fewer(model, speculation, expected):
    assert n_passes(MODELS[model](), speculation) == expected


@pytest.mark.parametrize("n_guesses", [0, 3])
def test_if_nothing_is_asked_for_as_many_are_guessed_as_pay_with_this_model(n_guesses):
    model = MODELS["says one thing"]()
    model.n_guesses = n_guesses
    assert n_passes(model, None) == n_passes(MODELS["says one thing"](), n_guesses)


def test_without_reuse_nothing_is_guessed():
    model = MODELS["says one thing"]()
    model.n_guesses = 3
    assert Engine(model).run(PROMPT, max_new_tokens=20, reuse=False).proposed_tokens == 0


def test_where_nothing_repeats_the_passes_are_the_same():
    assert n_passes(HashModel(), 15) == 40


@pytest.mark.parametrize("window", [2, 4])
def test_a_window_is_fed_no_more_ahead_than_it_can_go_back(window):
    engine = Engine(HashModel(vocab_size=4, window=window))
    fed = watched(engine)
    result = engine.run(PROMPT, max_new_tokens=60, sampling=SAMPLINGS["seeded"], speculation=15)
    assert result.proposed_tokens > result.accepted_tokens > 0
    assert {n_fed for _, n_fed in fed} == {2}


def watched(engine: Engine) -> list[tuple[int, int]]:
    """Return the list that collects where each guess was fed, and how many ids."""
    fed, produce_each = [], engine.runner.produce_each

    def watch(tokens, position):
        fed.append((position, len(tokens)))
        return produce_each(tokens, position)

    engine.runner.produce_each = watch
    return fed


@pytest.mark.parametrize("max_new_tokens", [None, 1, 2, 3, 4, 5, 20])
def test_no_guess_passes_the_budget_or_the_end_of_the_context(max_new_tokens):
    engine = Engine(HashModel(says=[5]))
    fed = watched(engine)
    result = engine.run(TEN, max_new_tokens=max_new_tokens, max_context=30, speculation=15)
    end = 10 + (max_new_tokens or 20)
    assert result.kv_position == end - 1
    assert all(start + n_fed < end for start, n_fed in fed)
    assert result.proposed_tokens == result.accepted_tokens


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("ending", ["stop string", "budget", "cancel", "cancel while pacing", "stop id"])
def test_however_a_reply_ends_within_what_was_guessed_the_rest_of_the_guess_is_gone(ending, nth):
    engine = Engine(HashModel(says=[5]))
    flag, changes = Flag(), {}
    match ending:
        case "stop string":
            changes = {"stop_strings": ("5 " * nth,), "max_new_tokens": 30}
        case "budget":
            changes = {"max_new_tokens": nth}
        case "cancel":
            changes = {"on_event": lambda event: flag.set() if len(engine.of_type(Token)) == nth else None}
        case "cancel while pacing":
            clock = Clock()
            flag = Flag(raised_in_wait=nth, clock=clock)  # the first token does not wait
            changes = {"max_tokens_per_sec": 2.0, "clock": clock}
        case "stop id":
            engine.model.logits = lambda state: np.eye(97, dtype=np.float32)[
                5 if len(state) < 10 + nth else 6
            ]
            changes = {"stop_ids": {6: StopReason.EOS}}
    result = engine.run(TEN, cancel=flag, speculation=15, **changes)
    n_new = nth + (ending == "cancel while pacing")
    assert result.new_tokens == n_new
    assert result.kv_position == 10 + n_new - (ending != "stop id")  # the last one only where it was fed
    assert engine.runner.record.ids == (*TEN, *[5] * n_new)[: result.kv_position]


def test_each_token_is_paced_also_those_that_were_guessed():
    def waits(speculation: int) -> list[float]:
        clock = Clock()
        flag = Flag(clock=clock)
        Engine(HashModel(says=[5])).run(
            TEN, max_new_tokens=30, max_tokens_per_sec=4.0, cancel=flag, clock=clock, speculation=speculation
        )
        return flag.waits

    assert waits(8) == waits(0)
    assert len(waits(8)) == 28


def test_no_pass_starts_once_the_flag_is_up():
    for nth in range(1, 20):
        engine, flag = Engine(HashModel(says=[5])), Flag()
        counts = []

        def cancel(event, engine=engine, flag=flag, counts=counts, nth=nth):
            if len(engine.of_type(Token)) == nth:
                flag.set()
                counts.append(engine.model.evaluated)

        engine.run(TEN, cancel=flag, on_event=cancel, speculation=4)
        assert {engine.model.evaluated} == set(counts)


# Case 3: an exception at every boundary


BOUNDARIES = (
    "before a chunk",
    "after its write",
    "after its commit",
    "before sampling",
    "after sampling",
    "in the event sink",
)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("model", ["says two things", "four words", "four words, window 4"])
def test_an_interrupt_at_any_boundary_leaves_no_guess_behind(monkeypatch, model, boundary):
    sample, make_model = Sampler.sample, MODELS[model]
    left = [0]

    def pass_by(name):
        left[0] -= name == boundary
        if name == boundary and left[0] == 0:
            raise KeyboardInterrupt

    def watched_sample(sampler, *arguments):
        pass_by("before sampling")
        token = sample(sampler, *arguments)
        pass_by("after sampling")
        return token

    monkeypatch.setattr(Sampler, "sample", watched_sample)
    sampling = SAMPLINGS["seeded" if "four" in model else "greedy"]
    changes = {"max_new_tokens": 24, "sampling": sampling, "speculation": 4}
    whole = Engine(make_model()).run(PROMPT, **changes)
    assert whole.accepted_tokens > 0
    for nth in itertools.count(1):
        engine = Engine(make_model())
        engine.model.on_boundary, left[0] = pass_by, nth
        try:
            engine.run(PROMPT, on_event=lambda event: pass_by("in the event sink"), **changes)
        except KeyboardInterrupt:
            ids = engine.runner.record.ids
            assert ids == (*PROMPT, *whole.token_ids)[: len(ids)]
            assert len(ids) <= len(PROMPT) + len(engine.of_type(Token))
        else:
            break
        left[0] = 0
        assert engine.run(PROMPT, **changes).token_ids == whole.token_ids
    assert nth > 3


# Real arithmetic


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def llama(request, tmp_path_factory):
    arithmetic = request.getfixturevalue("compiled") if request.param == "compiled" else None
    return load_tiny_model(tmp_path_factory.mktemp(request.param), arithmetic).model


@every_sampling
def test_a_real_model_says_the_same(llama, sampling):
    def run(speculation: int) -> RawDecodeResult:
        return run_raw_completion(
            Runner(llama, KvPrefix), PieceTable.of_bytes(), list(b"one two one two one"),
            CompletionConfig(
                sampling=replace(sampling, logit_bias=dict.fromkeys(b"abc", 9)), speculation=speculation,
                max_new_tokens=60,
            ),
            max_context=512, cancel=Flag(), on_progress=lambda event: None, clock=lambda: 0.0,
        )  # fmt: skip

    expected = run(0)
    results = [run(speculation) for speculation in (1, 4, 15)]
    assert [but_for_guesses(result) for result in results] == [expected] * 3
    assert all(result.proposed_tokens > 0 for result in results)
    assert any(result.accepted_tokens > 0 for result in results)


def test_a_producer_that_scores_only_the_last_token_is_never_asked_for_more():
    scripted = ScriptedProducer([[3, 3, 3, 3, 3, 3]], vocab_size=97, end_id=0)
    result = run_raw_completion(
        scripted, IDS, [3, 3, 3, 3], CompletionConfig(speculation=8, stop_ids={0: StopReason.EOS}),
        max_context=64, cancel=Flag(), on_progress=lambda event: None,
    )  # fmt: skip
    assert (result.token_ids, result.proposed_tokens) == ((3,) * 6, 0)
