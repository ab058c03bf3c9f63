"""The producer contract, over every kind of state: whatever happens, record and state agree and lose no position."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashModel, RecurrentModel, RecurrentState, hash_runner
from fed_runner import MakeModel, check_agreement, continued, feed, reply, run
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import COMPILED_SIZES, COMPILED_TOLERANCE, SIZES, load_tiny_model, write_tiny_model

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import LogitProducer, ScriptedProducer
from turbospark_chat.errors import TokenIdError
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.loader import Arithmetic, RunnableModel
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.runner import Runner

Close = Callable[[Any], Any]  # logits to what equals them, however the ids before were cut into chunks


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory, compiled: Arithmetic) -> dict[str, RunnableModel]:
    arithmetics = {"numpy": Arithmetic(), "compiled": compiled}
    models = {
        name: load_tiny_model(tmp_path_factory.mktemp(name), arithmetic).model
        for name, arithmetic in arithmetics.items()
    }
    assert [model.arithmetic.split(",")[0] for model in models.values()] == list(models)
    return models


MADE_UP: dict[str, MakeModel] = {
    "full": HashModel,
    "ring": partial(HashModel, window=4),
    "recurrent": RecurrentModel,
    "marked": partial(RecurrentModel, marks=True),
    "checkpoints": partial(RecurrentModel, every=3),
}


@pytest.fixture(scope="module", params=[*MADE_UP, "numpy", "compiled"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of model: full attention, a window in a ring, recurrent ones, and a real one in both arithmetics."""
    return str(request.param)


@pytest.fixture(scope="module")
def make_model(kind: str, llamas: dict[str, RunnableModel]) -> MakeModel:
    return MADE_UP.get(kind) or partial(llamas.__getitem__, kind)


@pytest.fixture(scope="module")
def close(kind: str) -> Close:
    return partial(pytest.approx, abs=COMPILED_TOLERANCE if kind == "compiled" else 1e-4)


def test_producers_have_the_protocols_members() -> None:
    producers: list[LogitProducer] = [hash_runner()[0], ScriptedProducer([], vocab_size=3, end_id=0)]
    members = {name: member for name, member in vars(LogitProducer).items() if not name.startswith("_")}
    for producer in producers:
        for name, member in members.items():
            mine = getattr(producer, name)
            if not isinstance(member, property):
                expected = list(inspect.signature(member).parameters.values())[1:]  # without self
                assert list(inspect.signature(mine).parameters.values()) == expected
    assert len(members) == 7


# --- feeding ---

IDS = st.lists(st.integers(0, 96), min_size=1, max_size=16)


@given(ids=IDS, sizes=st.lists(st.integers(1, 5), max_size=16))
def test_chunks_and_single_tokens_give_the_logits_of_one_chunk(
    make_model: MakeModel, close: Close, ids: list[int], sizes: list[int]
) -> None:
    at_once = feed(run(make_model()), ids)
    chunked, single = run(make_model()), run(make_model())
    logits = None
    for size in [*sizes, len(ids)]:
        position = len(chunked.record)
        if chunk := ids[position : position + size]:
            is_last = position + len(chunk) == len(ids)
            logits = chunked.produce_chunk(chunk, position, need_logits=is_last)
            assert (logits is None) is not is_last
            check_agreement(chunked, position + len(chunk))
    for position, token in enumerate(ids[:-1]):
        single.produce_prefill(token, position)
    assert logits == close(at_once)
    assert single.produce(ids[-1], len(ids) - 1) == close(at_once)
    assert chunked.record.ids == single.record.ids == tuple(ids)


@given(first=IDS, second=IDS)
def test_a_prompt_continued_from_any_other_gives_the_logits_of_a_fresh_run(
    make_model: MakeModel, close: Close, first: list[int], second: list[int]
) -> None:
    runner = run(make_model())
    feed(runner, first)
    assert continued(runner, second) == close(feed(run(make_model()), second))


@given(ids=IDS, tail=IDS, at=st.integers(0, 16))
def test_feeding_at_an_earlier_position_cuts_first_or_refuses(
    make_model: MakeModel, close: Close, ids: list[int], tail: list[int], at: int
) -> None:
    runner = run(make_model())
    feed(runner, ids)
    at = min(at, len(ids))
    try:
        logits = feed(runner, tail, at)
    except ValueError as error:  # a ring or a recurrent state
        left = len(runner.record)
        assert f"cannot go back to {at}: it is left with {left}" in str(error)
        check_agreement(runner, left)
        assert left < at
        return
    assert logits == close(feed(run(make_model()), ids[:at] + tail))
    check_agreement(runner, at + len(tail))


def test_full_attention_goes_back_to_any_position() -> None:
    for at in range(11):
        runner, model = hash_runner()
        feed(runner, list(range(30, 40)))
        model.evaluated = 0
        feed(runner, [1, 2], at)
        assert (model.evaluated, len(runner.record)) == (2, at + 2)


@pytest.mark.parametrize("bad_id", [-1, 97, 10**9])
def test_id_outside_the_vocabulary_is_named_and_nothing_is_fed(bad_id: int) -> None:
    runner, model = hash_runner()
    feed(runner, [5, 11])
    model.evaluated = 0
    with pytest.raises(TokenIdError, match=f"token id {bad_id} is outside the vocabulary of 97"):
        feed(runner, [7, bad_id], 1)
    assert model.evaluated == 0
    assert runner.record.ids == (5, 11)
    check_agreement(runner, 2)


@pytest.mark.parametrize(
    ("ids", "position", "problem"),
    [([7], 3, "position 3 leaves a gap after 2"), ([7], -1, "position -1"), ([], 2, "no tokens to feed")],
)
def test_feeding_that_makes_no_sense_is_refused_and_nothing_changes(
    make_model: MakeModel, ids: list[int], position: int, problem: str
) -> None:
    runner = run(make_model())
    feed(runner, [5, 11])
    with pytest.raises(ValueError, match=problem):
        feed(runner, ids, position)
    assert runner.record.ids == (5, 11)
    check_agreement(runner, 2)


def test_reset_empties_record_and_state(make_model: MakeModel, close: Close) -> None:
    runner = run(make_model())
    feed(runner, [5, 11, 23, 42])
    runner.reset()
    check_agreement(runner, 0)
    assert runner.try_reuse_prefix([5, 11, 23, 42]) == 0
    assert feed(runner, [5, 11]) == close(feed(run(make_model()), [5, 11]))


# --- reuse ---


@pytest.mark.parametrize("n_fed_at_once", [1, 3, 64])
@pytest.mark.parametrize(
    ("make", "prompt_ids"),
    [
        pytest.param(HashModel, [5, 11, 23, 42], id="2-full"),
        pytest.param(HashModel, [5], id="2-one-id"),
        pytest.param(partial(HashModel, window=2), [5, 11, 23, 42], id="2-wrapped-ring"),
        pytest.param(partial(HashModel, window=4), range(10, 22), id="A8-wrapped-ring"),
        pytest.param(partial(RecurrentModel, marks=True), [5, 11, 23, 42], id="2-recurrent-with-marks"),
        pytest.param(partial(RecurrentModel, marks=True), [5], id="2-recurrent-one-id"),
    ],
)
def test_the_same_prompt_again_evaluates_one_token(
    make: MakeModel, prompt_ids: Sequence[int], n_fed_at_once: int
) -> None:
    model = make()
    runner = run(model)
    runner.try_reuse_prefix(prompt_ids)
    for position in range(0, len(prompt_ids), n_fed_at_once):
        chunk = prompt_ids[position : position + n_fed_at_once]
        is_last = position + len(chunk) == len(prompt_ids)
        first = runner.produce_chunk(chunk, position, need_logits=is_last)
    for _ in range(2):
        model.evaluated = 0
        assert np.array_equal(continued(runner, prompt_ids), first)
        assert model.evaluated == 1


def test_a_prompt_shorter_than_the_cache_evaluates_one_token() -> None:  # A12
    runner, model = hash_runner()
    feed(runner, list(range(40)))
    model.evaluated = 0
    assert reply(runner, list(range(12))) == reply(hash_runner()[0], list(range(12)))
    assert model.evaluated == 1 + 3
    assert runner.try_reuse_prefix([]) == 0
    check_agreement(runner, 0)


def test_prompts_that_share_only_bos_keep_it(make_model: MakeModel, close: Close) -> None:  # A13
    runner = run(make_model())
    feed(runner, [1, 10, 11])
    logits = continued(runner, [1, 20, 21])
    assert logits == close(feed(run(make_model()), [1, 20, 21]))


def test_a_ring_that_has_overwritten_the_window_starts_again() -> None:  # 5
    runner, model = hash_runner(window=4)
    feed(runner, list(range(10, 22)))
    prompt_ids = [*range(10, 19), 60]
    model.evaluated = 0
    assert runner.try_reuse_prefix(prompt_ids) == 0
    assert reply(runner, prompt_ids) == [84, 51, 70]
    assert model.evaluated == 10 + 3
    assert reply(hash_runner()[0], prompt_ids) == [26, 1, 0]  # what a model without the window says


@pytest.mark.parametrize(
    ("prompt_ids", "kept", "next_id"),
    [([5, 11, 9], 0, 1), ([5, 11, 23, 42, 9], 4, None), ([5, 11, 23, 42], 0, None)],
)
def test_a_recurrent_state_is_kept_whole_or_not_at_all(
    prompt_ids: list[int], kept: int, next_id: int | None
) -> None:  # 6, 2
    runner = run(RecurrentModel())
    feed(runner, [5, 11, 23, 42])
    assert runner.state.value == 3809
    assert runner.try_reuse_prefix(prompt_ids) == kept
    check_agreement(runner, kept)
    logits = feed(runner, prompt_ids[kept:], kept)
    assert np.array_equal(logits, feed(run(RecurrentModel()), prompt_ids))
    assert next_id is None or (runner.state.value, int(np.argmax(logits))) == (5918, next_id)


def test_a_rewind_goes_back_to_the_newest_checkpoint_before_it() -> None:  # 6
    model = RecurrentModel(every=2)
    runner = run(model)
    feed(runner, [5, 11, 23, 42])
    assert (runner.state.value, runner.state.checkpoints.lengths) == (3809, (2, 4))
    for _ in range(2):  # what is generated in between leaves the checkpoint as it was
        model.evaluated = 0
        assert runner.try_reuse_prefix([5, 11, 9]) == 2
        assert (int(np.argmax(feed(runner, [9], 2))), runner.state.value, model.evaluated) == (1, 5918, 1)
        for position in range(3, 9):
            runner.produce(position, position)


def test_a_state_without_slack_is_marked_where_a_prompt_joins_it_and_before_its_last_token() -> None:
    runner = run(RecurrentModel(marks=True))

    def marks() -> tuple[int, ...]:
        return runner.state.checkpoints.lengths

    reply(runner, [5, 11, 23, 42], n_new=5)
    assert marks() == (3,)  # a reply's tokens are not marked
    prompt_ids = [*runner.record.ids, 7, 8, 9]
    reply(runner, prompt_ids, n_new=2)
    assert marks() == (3, 9, 11)
    assert runner.try_reuse_prefix([*runner.record.ids, 60, 61]) == 14
    runner.produce_chunk([60, 61], 14, need_logits=False)  # no prompt's end
    assert marks() == (3, 9, 11, 14)


def test_a_retry_costs_one_token_after_any_reply() -> None:
    for model in (HashModel(), RecurrentModel(marks=True)):
        runner = run(model)
        said = reply(runner, [5, 11, 23, 42], n_new=20)
        model.evaluated = 0
        assert reply(runner, [5, 11, 23, 42], n_new=20) == said
        assert model.evaluated == 1 + 20


@pytest.mark.parametrize("at", range(5))
def test_several_tokens_scored_at_once_are_scored_as_one_by_one_and_can_be_taken_back(at: int) -> None:
    each, single = hash_runner()[0], hash_runner()[0]
    for runner in (each, single):
        feed(runner, [5, 11])
    ids = [23, 42, 7, 8]
    expected = [single.produce(token, position) for position, token in enumerate(ids, start=2)]
    assert np.array_equal(each.produce_each(ids, 2), expected)
    check_agreement(each, 6)
    assert each.rewind_to(2 + at) == 2 + at
    assert each.record.ids == (5, 11, *ids[:at])
    assert np.array_equal(feed(each, [9], 2 + at), feed(single, [9], 2 + at))


def test_a_model_that_scores_only_the_last_token_says_so() -> None:
    runner = run(RecurrentModel())
    feed(runner, [5, 11])
    assert (runner.slack, hash_runner()[0].slack, hash_runner(window=4)[0].slack) == (0, sys.maxsize, 1)
    with pytest.raises(ValueError, match="only the last of several tokens"):
        runner.produce_each([23, 42], 2)
    check_agreement(runner, 2)


@pytest.mark.parametrize(("name", "kind_of_cache"), [("numpy", KvCache), ("compiled", PackedKvCache)])
def test_second_turn_allocates_no_cache(
    name: str, kind_of_cache: type, llamas: dict[str, RunnableModel]
) -> None:  # T60
    runner = run(llamas[name])
    feed(runner, list(range(100)))
    assert type(runner.state) is kind_of_cache

    def room() -> tuple[int, dict[str, int]]:
        """Return the cache's bytes and where its arrays begin."""
        arrays = runner.state.export().items()
        return runner.state.n_bytes, {array_name: array.ctypes.data for array_name, array in arrays}

    before = room()
    continued(runner, [*range(60), *range(150, 250)])
    assert room() == before


# --- faults ---


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("boundary", ["before a chunk", "after its write", "after its commit"])
@pytest.mark.parametrize("nth_chunk", range(4))
def test_a_fault_inside_a_pass_leaves_record_and_state_agreeing(
    boundary: str, nth_chunk: int, error: type[BaseException]
) -> None:  # 3
    runner, model = hash_runner()
    left = nth_chunk

    def interrupt(name: str) -> None:
        nonlocal left
        if name == boundary:
            left -= 1
            if left < 0:
                raise error

    model.on_boundary = interrupt
    prompt_ids = list(range(30, 40))
    with pytest.raises(error):
        for position in range(0, 10, 3):
            runner.produce_chunk(prompt_ids[position : position + 3], position, need_logits=position == 9)
    check_agreement(runner, 3 * nth_chunk)
    assert runner.record.ids == tuple(prompt_ids[: 3 * nth_chunk])
    model.on_boundary = lambda name: None
    assert int(np.argmax(continued(runner, [30, 31, 32, 80]))) == 93
    assert int(np.argmax(continued(runner, prompt_ids))) == 37


@pytest.mark.parametrize("boundary", ["before a chunk", "after its commit"])
@pytest.mark.parametrize(("nth_pass", "left"), [(1, 0), (2, 3)])
def test_a_fault_before_or_after_the_mark_leaves_what_came_before_it(
    boundary: str, nth_pass: int, left: int
) -> None:  # 3
    model = RecurrentModel(marks=True)
    runner, passed = run(model), 0

    def interrupt(name: str) -> None:
        nonlocal passed
        passed += name == boundary
        if name == boundary and passed == nth_pass:
            raise KeyboardInterrupt

    model.on_boundary = interrupt
    runner.try_reuse_prefix([5, 11, 23, 42])
    with pytest.raises(KeyboardInterrupt):
        feed(runner, [5, 11, 23, 42])
    check_agreement(runner, left)
    assert runner.record.ids == (5, 11, 23)[:left]
    model.evaluated = 0
    assert reply(runner, [5, 11, 23, 42]) == reply(run(RecurrentModel()), [5, 11, 23, 42])
    assert model.evaluated == 4 - left + 3


def test_a_mark_that_cannot_be_made_leaves_record_and_state_agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    def mark(state: object) -> None:
        raise MemoryError

    runner = run(RecurrentModel())
    runner.try_reuse_prefix([5, 11, 23, 42])
    with monkeypatch.context() as patched:
        patched.setattr(RecurrentState, "mark", mark)
        with pytest.raises(MemoryError):
            feed(runner, [5, 11, 23, 42])
        check_agreement(runner, 3)
        with pytest.raises(MemoryError):
            runner.try_reuse_prefix([5, 11, 23, 9])
        check_agreement(runner, 3)
    assert reply(runner, [5, 11, 23, 9]) == reply(run(RecurrentModel()), [5, 11, 23, 9])


@pytest.mark.parametrize("boundary", ["before a chunk", "after its write", "after its commit"])
def test_a_fault_while_several_tokens_are_scored_takes_them_back(boundary: str) -> None:  # 3
    runner, model = hash_runner()
    feed(runner, [30, 31, 32])

    def interrupt(name: str) -> None:
        if name == boundary:
            raise KeyboardInterrupt

    model.on_boundary = interrupt
    with pytest.raises(KeyboardInterrupt):
        runner.produce_each([33, 34], 3)
    check_agreement(runner, 3)
    model.on_boundary = lambda name: None
    assert int(np.argmax(continued(runner, [30, 31, 32, 80]))) == 93


@given(
    ids=IDS,
    tail=IDS,
    boundary=st.sampled_from(["before a chunk", "after its write", "after its commit"]),
    kind=st.sampled_from(list(MADE_UP.values())),
    following=IDS,
)
def test_after_a_fault_any_prompt_is_served_as_by_a_fresh_runner(
    ids: list[int], tail: list[int], boundary: str, kind: MakeModel, following: list[int]
) -> None:
    model = kind()
    runner = run(model)
    continued(runner, ids)

    def interrupt(name: str) -> None:
        if name == boundary:
            raise KeyboardInterrupt

    model.on_boundary = interrupt
    try:
        feed(runner, tail, len(ids))
    except KeyboardInterrupt:
        assert runner.record.ids == tuple(ids[: len(runner.record)])
    model.on_boundary = lambda name: None
    check_agreement(runner, len(runner.record))
    assert np.array_equal(continued(runner, following), feed(run(kind()), following))


class FaultyRecord(KvPrefix):
    """A record that is interrupted while it takes ids: before, or after, as `takes_first` says."""

    takes_first: bool | None = None

    def record(self, tokens: Sequence[int], pos0: int) -> None:
        if self.takes_first is not False:
            super().record(tokens, pos0)
        if self.takes_first is not None:
            raise KeyboardInterrupt


@pytest.mark.parametrize("takes_first", [False, True])
def test_a_fault_while_recording_takes_the_positions_back(
    make_model: MakeModel, close: Close, takes_first: bool
) -> None:
    runner = Runner(make_model(), FaultyRecord)
    feed(runner, [30, 31, 32])
    runner.record.takes_first = takes_first
    with pytest.raises(KeyboardInterrupt):
        feed(runner, [33, 34], 3)
    assert len(runner.record) == len(runner.state) in (3, 0)
    runner.record.takes_first = None
    assert continued(runner, [30, 31, 32, 80]) == close(feed(run(make_model()), [30, 31, 32, 80]))


FORKING = """
import multiprocessing, pathlib, sys
from turbospark_chat.assembly import open_chat_model
from turbospark_chat.errors import ForkedEngineError

runner = open_chat_model(pathlib.Path(sys.argv[1]), context_length=None).producer
runner.produce(5, 0)
context = multiprocessing.get_context("fork")
answers = context.SimpleQueue()

def answer():
    try:
        runner.produce(6, 1)
    except ForkedEngineError as error:
        answers.put(str(error))
    else:
        answers.put("ran")

child = context.Process(target=answer)
child.start()
print(answers.get())
child.join()
runner.produce(6, 1)
print(len(runner.record))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("sizes", [SIZES, COMPILED_SIZES], ids=["numpy", "compiled"])
def test_a_forked_child_is_refused_and_its_parent_goes_on(
    sizes: dict[str, int], tmp_path: Path
) -> None:  # F21
    model = write_tiny_model(tmp_path / "tiny.gguf", sizes=sizes)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    refusal, length = done.stdout.splitlines()
    assert "cannot run in its forked child" in refusal
    assert "start it as a new process" in refusal
    assert length == "2"


# --- a pool of states, on which there is more in test_runner_pool.py ---

PROMPTS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), max_size=8)


@given(prompts=PROMPTS, slots=st.sampled_from([None, 0, 1, 2]))
def test_any_order_of_prompts_gives_the_replies_of_cold_runs(
    make_model: MakeModel, close: Close, prompts: list[list[int]], slots: int | None
) -> None:
    runner = run(make_model(), slots=slots)
    for prompt_ids in prompts:
        said, cold = reply(runner, prompt_ids, n_new=2), run(make_model())
        logits = feed(cold, prompt_ids)
        for token in said:
            assert logits[token] == close(logits.max())  # of two candidates this close, either
            logits = cold.produce(token, len(cold.record))
