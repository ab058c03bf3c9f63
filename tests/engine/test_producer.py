"""The producer's contract, the same for every model behind the runner and for the shipped double."""

from collections.abc import Callable
from threading import Event

import numpy as np
import pytest
from fakes import HashModel, PieceTable, RecurrentModel
from tiny_model import COMPILED_TOLERANCE, load_tiny_model

from turbospark_chat.engine.completion import CompletionConfig, StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import LogitProducer, ScoresEach, ScriptedProducer
from turbospark_chat.engine.progress import Tail, Token
from turbospark_chat.engine.raw_completion import run_raw_completion
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.errors import TurboSparkError
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.runner import Runner

PROMPT = [5, 11, 23, 42, 7, 8, 9]


@pytest.fixture(scope="module")
def llamas(tmp_path_factory, compiled):
    arithmetics = {"numpy": None, "compiled": compiled}
    return {
        name: load_tiny_model(tmp_path_factory.mktemp(name), arithmetic).model
        for name, arithmetic in arithmetics.items()
    }


@pytest.fixture(
    params=["scripted", "hash", "window 2", "window 4", "recurrent", "numpy llama", "compiled llama"]
)
def make_producer(request: pytest.FixtureRequest) -> Callable[[], LogitProducer]:
    """Return what makes a new, empty producer."""
    match request.param.split():
        case ["scripted"]:
            return lambda: ScriptedProducer([[1, 2, 3]], vocab_size=97, end_id=0)
        case ["hash"]:
            return lambda: Runner(HashModel(), KvPrefix)
        case ["window", width]:
            return lambda: Runner(HashModel(window=int(width)), KvPrefix)
        case ["recurrent"]:
            return lambda: Runner(RecurrentModel(), KvPrefix)
        case [arithmetic, "llama"]:
            model = request.getfixturevalue("llamas")[arithmetic]
            assert model.arithmetic.startswith(arithmetic)
            return lambda: Runner(model, KvPrefix)
    raise AssertionError(request.param)


def held_ids(producer: LogitProducer) -> list[int]:
    """Return the recorded ids, having checked that the state is as long."""
    if isinstance(producer, ScriptedProducer):
        return list(producer.record)
    assert len(producer.state) == len(producer.record)
    return list(producer.record.ids)


def last_logits(producer: LogitProducer, ids: list[int], start: int = 0) -> np.ndarray:
    return producer.produce_chunk(ids[start:], start, need_logits=True)


def assert_same(producer: LogitProducer, logits: np.ndarray, expected: np.ndarray) -> None:
    is_packed = isinstance(producer, Runner) and isinstance(producer.state, PackedKvCache)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=COMPILED_TOLERANCE if is_packed else 1e-4)


def test_a_new_producer_holds_nothing(make_producer):
    producer = make_producer()
    assert held_ids(producer) == []
    assert producer.try_reuse_prefix(PROMPT) == 0
    assert producer.session_slot_evicted is False


@pytest.mark.parametrize("cuts", [[], [1], [3], [6], [2, 4], [1, 2, 3, 4, 5, 6]], ids=str)
def test_any_chunks_give_the_logits_of_one_chunk(make_producer, cuts):
    whole, parts = make_producer(), make_producer()
    expected = last_logits(whole, PROMPT)
    assert expected.shape == (whole.vocab_size,)
    for start, end in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True):
        is_last = end == len(PROMPT)
        logits = parts.produce_chunk(PROMPT[start:end], start, need_logits=is_last)
        assert held_ids(parts) == PROMPT[:end]
        assert (logits is None) is not is_last
    assert_same(parts, logits, expected)


def test_token_by_token_gives_the_logits_of_one_chunk(make_producer):
    whole, single = make_producer(), make_producer()
    for position, token in enumerate(PROMPT[:-1]):
        assert single.produce_prefill(token, position) is None
    logits = single.produce(PROMPT[-1], len(PROMPT) - 1)
    assert_same(single, logits, last_logits(whole, PROMPT))
    assert held_ids(single) == PROMPT


@pytest.mark.parametrize(
    "prompt_ids",
    [PROMPT, PROMPT[:3], [*PROMPT, 1, 2], [5, 11, 60, 61], [9, 11, 23], [5], []],
    ids=["same", "shorter", "longer", "diverging", "nothing in common", "one id", "empty"],
)
def test_reuse_commits_what_it_answers_and_never_a_wrong_state(make_producer, prompt_ids):
    producer, cold = make_producer(), make_producer()
    last_logits(producer, PROMPT)
    kept = producer.try_reuse_prefix(prompt_ids)
    assert held_ids(producer) == PROMPT[:kept] == prompt_ids[:kept]
    assert kept <= max(0, len(prompt_ids) - 1)
    if prompt_ids and not isinstance(producer, ScriptedProducer):  # a script goes on, whatever it is fed
        assert_same(producer, last_logits(producer, prompt_ids, kept), last_logits(cold, prompt_ids))


def test_a_state_that_only_grows_keeps_all_that_is_shared(make_producer):  # 7, A19
    producer = make_producer()
    last_logits(producer, PROMPT)
    assert producer.try_reuse_prefix([*PROMPT, 1, 2]) == len(PROMPT)


@pytest.mark.parametrize(
    "make_producer", ["scripted", "hash", "numpy llama", "compiled llama"], indirect=True
)
@pytest.mark.parametrize("n_shared", range(len(PROMPT)))
def test_a_cache_of_every_position_goes_back_to_any(make_producer, n_shared):
    producer = make_producer()
    last_logits(producer, PROMPT)
    assert producer.try_reuse_prefix([*PROMPT[:n_shared], 60, 61]) == n_shared


def test_reuse_is_refused_after_a_reset(make_producer):
    producer = make_producer()
    last_logits(producer, PROMPT)
    producer.reset()
    assert held_ids(producer) == []
    assert producer.try_reuse_prefix(PROMPT) == 0


def test_feeding_before_the_end_cuts_there_first_or_refuses(make_producer):
    producer, cold = make_producer(), make_producer()
    last_logits(producer, PROMPT)
    edited = [*PROMPT[:3], 60, 61]
    try:
        logits = last_logits(producer, edited, 3)
    except ValueError:  # a state that cannot go back
        assert held_ids(producer) == []
    else:
        assert held_ids(producer) == edited
        if not isinstance(producer, ScriptedProducer):
            assert_same(producer, logits, last_logits(cold, edited))


def test_a_gap_is_refused_and_changes_nothing(make_producer):
    producer = make_producer()
    last_logits(producer, PROMPT[:3])
    with pytest.raises(ValueError, match="position 4 leaves a gap after 3"):
        producer.produce(1, 4)
    assert held_ids(producer) == PROMPT[:3]


# What scores each of several tokens, for guesses that are checked at once and taken back


every_scoring_producer = pytest.mark.parametrize(
    "make_producer", ["hash", "window 2", "window 4", "numpy llama", "compiled llama"], indirect=True
)


@every_scoring_producer
@pytest.mark.parametrize(("start", "end"), [(0, 7), (0, 1), (3, 7), (6, 7)])
def test_each_token_gets_the_logits_it_gets_alone(make_producer, start, end):
    producer, single = make_producer(), make_producer()
    if start:
        producer.produce_chunk(PROMPT[:start], 0, need_logits=False)
    logits = producer.produce_each(PROMPT[start:end], start)
    assert logits.shape == (end - start, producer.vocab_size)
    assert held_ids(producer) == PROMPT[:end]
    expected = [single.produce(token, position) for position, token in enumerate(PROMPT[:end])]
    assert_same(producer, logits, np.array(expected[start:]))


@every_scoring_producer
def test_tokens_that_did_not_come_are_taken_back_within_the_slack(make_producer):
    slack = make_producer().slack
    assert slack > 0
    for n_refused in range(1, min(slack, 4) + 1):
        producer, cold = make_producer(), make_producer()
        producer.produce_chunk(PROMPT[:3], 0, need_logits=False)
        producer.produce_each(PROMPT[3:], 3)
        kept = len(PROMPT) - n_refused
        assert producer.rewind_to(kept) == kept == len(held_ids(producer))
        assert producer.rewind_to(99) == kept
        edited = [*PROMPT[:kept], 60]
        assert_same(producer, producer.produce_each([60], kept)[0], last_logits(cold, edited))
        assert held_ids(producer) == edited


@every_scoring_producer
@pytest.mark.parametrize(("tokens", "position"), [([1], 4), ([], 3), ([10**6], 3)], ids=str)
def test_what_scores_each_refuses_what_a_chunk_refuses(make_producer, tokens, position):
    producer = make_producer()
    last_logits(producer, PROMPT[:3])
    with pytest.raises((ValueError, TurboSparkError)):
        producer.produce_each(tokens, position)
    assert held_ids(producer) == PROMPT[:3]


@pytest.mark.parametrize("make_producer", ["scripted", "recurrent"], indirect=True)
def test_what_scores_only_the_last_token_is_none_that_can_guess(make_producer):
    producer = make_producer()
    assert not isinstance(producer, ScoresEach) or producer.slack == 0


def test_a_model_that_scores_only_the_last_token_has_no_slack_and_says_so():
    runner = Runner(RecurrentModel(), KvPrefix)
    assert runner.slack == 0
    with pytest.raises(ValueError, match="only the last"):
        runner.produce_each([1, 2], 0)


# The double, as its users meet it.


def say(producer: ScriptedProducer, prompt_ids: list[int], **settings) -> list[int]:
    config = CompletionConfig(
        sampling=SamplingConfig(temperature=0), stop_ids={0: StopReason.END_OF_TURN}, **settings
    )
    result = run_raw_completion(
        producer, PieceTable.of_bytes(), prompt_ids, config,
        max_context=100, cancel=Event(), on_progress=lambda event: None,
    )  # fmt: skip
    return list(result.token_ids)


def test_a_script_is_said_one_reply_a_prompt():
    producer = ScriptedProducer([[3, 4], [], [5]], vocab_size=256, end_id=0)
    assert say(producer, [1, 2]) == [3, 4]
    assert say(producer, [1, 2, 3, 4, 6]) == []
    assert say(producer, [9]) == [5]
    assert say(producer, [9, 5]) == [], "when the script is over every reply is empty"


def test_a_reply_cut_short_is_not_continued_by_the_next():
    producer = ScriptedProducer([[3, 4, 5], [6]], vocab_size=256, end_id=0)
    assert say(producer, [1], max_new_tokens=1) == [3]
    assert say(producer, [1, 3, 2]) == [6]


def test_what_a_double_was_fed_shows_what_reuse_saved():
    producer = ScriptedProducer([[3, 4], [5]], vocab_size=256, end_id=0)
    say(producer, [1, 2])
    say(producer, [1, 2, 3, 4, 6])
    assert producer.fed == [1, 2, 3, 4, 6, 5]


def test_a_script_drives_whatever_is_built_on_a_run():
    texts: list[str] = []
    producer = ScriptedProducer([list(b"Hi!")], vocab_size=256, end_id=0)
    run_raw_completion(
        producer, PieceTable.of_bytes(), list(b"Hello"),
        CompletionConfig(stop_ids={0: StopReason.END_OF_TURN}),
        max_context=100, cancel=Event(),
        on_progress=lambda event: texts.append(event.text) if isinstance(event, Token | Tail) else None,
    )  # fmt: skip
    assert texts == ["H", "i", "!", ""]
