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
from fakes import HashModel, HashState, RecurrentModel, hash_runner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_model import COMPILED_SIZES, COMPILED_TOLERANCE, SIZES, load_tiny_model, write_tiny_model

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import LogitProducer, ScriptedProducer
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.errors import TokenIdError
from turbospark_chat.models import kv_cache
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.loader import Arithmetic, RunnableModel
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.runner import Runner

AnyRunner = Runner[KvPrefix, Any]
MakeModel = Callable[[], Any]
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


@pytest.fixture(scope="module", params=["hash", "ring", "recurrent", "numpy", "compiled"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of model: full attention, a window in a ring, recurrent, and a real one in both arithmetics."""
    return str(request.param)


@pytest.fixture(scope="module")
def make_model(kind: str, llamas: dict[str, RunnableModel]) -> MakeModel:
    makers: dict[str, MakeModel] = {
        "hash": HashModel,
        "ring": partial(HashModel, window=4),
        "recurrent": RecurrentModel,
    }
    return makers.get(kind) or partial(llamas.__getitem__, kind)


@pytest.fixture(scope="module")
def close(kind: str) -> Close:
    return partial(pytest.approx, abs=COMPILED_TOLERANCE if kind == "compiled" else 1e-4)


def run(model: Any, *, slots: int | None = None) -> AnyRunner:
    return Runner(model, KvPrefix, pool=None if slots is None else SessionPool(slots))


def feed(runner: AnyRunner, ids: Sequence[int], position: int = 0) -> NDArray[np.float32]:
    logits = runner.produce_chunk(ids, position, need_logits=True)
    assert logits is not None
    return logits


def continued(runner: AnyRunner, prompt_ids: Sequence[int]) -> NDArray[np.float32]:
    """Bring a prompt in as the engine does, from what the runner holds of it."""
    kept = runner.try_reuse_prefix(prompt_ids)
    check_agreement(runner, kept)
    logits = feed(runner, prompt_ids[kept:], kept)
    check_agreement(runner, len(prompt_ids))
    assert runner.record.ids == tuple(prompt_ids)
    return logits


def reply(runner: AnyRunner, prompt_ids: Sequence[int], n_new: int = 3) -> list[int]:
    """Serve a prompt greedily; every id of the reply is fed."""
    logits = continued(runner, prompt_ids)
    ids: list[int] = []
    for position in range(len(prompt_ids), len(prompt_ids) + n_new):
        ids.append(int(np.argmax(logits)))
        logits = runner.produce(ids[-1], position)
        check_agreement(runner, position + 1)
    return ids


def check_agreement(runner: AnyRunner, length: int) -> None:
    assert (len(runner.record), len(runner.state)) == (length, length)


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
        assert f"cannot go back to {at}" in str(error)
        check_agreement(runner, 0)
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


def test_the_same_prompt_again_evaluates_one_token() -> None:  # 2
    for prompt_ids in ([5, 11, 23, 42], [5]):
        runner, model = hash_runner()
        first = continued(runner, prompt_ids)
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


def test_a_ring_that_still_holds_the_window_evaluates_one_token() -> None:  # A8
    runner, model = hash_runner(window=4)
    prompt_ids = list(range(10, 22))
    first = continued(runner, prompt_ids)
    model.evaluated = 0
    assert np.array_equal(continued(runner, prompt_ids), first)
    assert model.evaluated == 1


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


@pytest.mark.parametrize(("name", "kind_of_cache"), [("numpy", KvCache), ("compiled", PackedKvCache)])
def test_second_turn_allocates_no_cache(
    name: str, kind_of_cache: type, llamas: dict[str, RunnableModel], monkeypatch: pytest.MonkeyPatch
) -> None:  # T60
    runner = run(llamas[name])
    feed(runner, list(range(100)))
    assert type(runner.state) is kind_of_cache
    n_bytes = runner.state.n_bytes
    # The only ways to new arrays.
    monkeypatch.setattr(kv_cache, "_grown", None)
    monkeypatch.setattr(PackedKvCache, "_grown", None)
    continued(runner, [*range(60), *range(150, 250)])
    assert runner.state.n_bytes == n_bytes


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


@given(
    ids=IDS,
    tail=IDS,
    boundary=st.sampled_from(["before a chunk", "after its write", "after its commit"]),
    kind=st.sampled_from([HashModel, partial(HashModel, window=4), RecurrentModel]),
    following=IDS,
)
def test_after_a_fault_any_prompt_is_served_as_by_a_fresh_runner(
    ids: list[int], tail: list[int], boundary: str, kind: MakeModel, following: list[int]
) -> None:
    model = kind()
    runner = run(model)
    feed(runner, ids)

    def interrupt(name: str) -> None:
        if name == boundary:
            raise KeyboardInterrupt

    model.on_boundary = interrupt
    try:
        feed(runner, tail, len(ids))
    except KeyboardInterrupt:
        assert len(runner.record) in (len(ids), 0)
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


# --- a pool of states ---

FIRST = list(range(40, 60))
SECOND = [3, 4]


@pytest.mark.parametrize(
    ("slots", "evaluated", "evicted"),
    [
        # Each turn feeds what is new of its prompt, and three ids of its reply.
        (None, [23, 5, 23, 5], [False] * 4),
        (0, [23, 5, 23, 5], [False, True, True, True]),
        (1, [23, 5, 4, 4], [False] * 4),
        (2, [23, 5, 4, 4], [False] * 4),
    ],
)
def test_conversations_by_turns_equal_cold_runs(
    slots: int | None, evaluated: list[int], evicted: list[bool]
) -> None:  # A15
    model = HashModel()
    runner = run(model, slots=slots)
    for n_evaluated, is_evicted, prompt_ids in zip(
        evaluated, evicted, [FIRST, SECOND, FIRST, SECOND], strict=True
    ):
        model.evaluated = 0
        assert reply(runner, prompt_ids) == reply(run(HashModel()), prompt_ids)
        assert model.evaluated == n_evaluated
        assert runner.session_slot_evicted is is_evicted


def test_a_swap_moves_the_parked_state_back_and_copies_nothing() -> None:
    runner = run(HashModel(), slots=1)
    reply(runner, FIRST)
    state, record = runner.state, runner.record
    reply(runner, SECOND)
    assert runner.state is not state
    reply(runner, FIRST)
    assert runner.state is state
    assert runner.record is record


def test_the_least_recently_used_conversation_is_thrown_away_and_said_so() -> None:
    model = HashModel()
    runner = run(model, slots=1)
    said = []
    for prompt_ids in ([1, 2, 3], [4, 5, 6], [7, 8, 9], [4, 5, 6], [1, 2, 3]):
        model.evaluated = 0
        reply(runner, prompt_ids)
        said.append((runner.session_slot_evicted, model.evaluated - 3))
    assert said == [(False, 3), (False, 3), (True, 3), (False, 1), (True, 3)]


def test_of_two_states_that_serve_a_prompt_the_one_that_serves_more_is_taken() -> None:
    model, pool = HashModel(), SessionPool[HashState](1)
    other, runner = run(model), Runner(model, KvPrefix, pool=pool)
    feed(other, [1, 2, 3, 4])
    pool.park(other.record, other.state)
    feed(runner, [1, 9])
    assert runner.try_reuse_prefix([1, 2, 3, 4, 5]) == 4
    assert (runner.state, len(pool)) == (other.state, 1)
    feed(runner, [5, 6, 7], 4)
    assert runner.try_reuse_prefix([1, 2, 9]) == 2  # a parked state that serves less stays where it is
    assert runner.state is other.state


def test_the_flag_tells_of_the_latest_prompt_only() -> None:
    runner = run(HashModel(), slots=0)
    reply(runner, FIRST)
    reply(runner, SECOND)
    assert runner.session_slot_evicted
    reply(runner, [*SECOND, 5])
    assert not runner.session_slot_evicted


def test_an_empty_state_is_not_parked() -> None:
    runner = run(HashModel(), slots=1)
    reply(runner, FIRST)
    runner.reset()
    reply(runner, SECOND)
    assert not runner.session_slot_evicted


def test_a_parked_state_stays_as_it_was_and_can_serve_twice() -> None:  # A11
    runner = run(HashModel(), slots=1)
    feed(runner, [5, 11, 23, 42])
    state = runner.state
    said = []
    for _ in range(2):
        before = list(state.entries)
        reply(runner, SECOND, n_new=20)
        assert state.entries == before
        said.append(reply(runner, [5, 11, 23, 42, 9]))
        assert runner.state is state
    assert said[0] == said[1] == reply(run(HashModel()), [5, 11, 23, 42, 9])


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
