"""A state of two parts: they vote on how far it goes back, and a hybrid model over it never says a wrong word."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hybrid_model import SHAPE, HybridEngine, HybridModel, HybridTinyState
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turbospark_chat.models.delta_net import DeltaMemory
from turbospark_chat.models.delta_state import DeltaState
from turbospark_chat.models.hybrid_state import HybridState

BOUNDARIES = ["before a chunk", *(f"after layer {index}" for index in range(3)), "after its commit"]
WINDOW = 5
MODELS = {
    "all attention": HybridModel,
    "window": partial(HybridModel, window=WINDOW),
    "window with slack": partial(HybridModel, window=WINDOW, window_slack=6),
    "two checkpoints": partial(HybridModel, n_checkpoints=2),
}
every_model = pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)

# --- the vote, over two parts that can each go back to their own checkpoints only ---


def feed(state: DeltaState, n_tokens: int) -> None:
    state.write(0, DeltaMemory.empty(SHAPE))
    state.commit(len(state) + n_tokens)


def part(length: int, marks: Sequence[int]) -> DeltaState:
    state = DeltaState(shape=SHAPE, n_layers=1, n_checkpoints=99)
    for at in sorted(set(marks) - {0, length}):
        if at < length:
            feed(state, at - len(state))
            state.mark()
    feed(state, length - len(state))
    return state


@pytest.mark.parametrize(
    ("first", "second", "asked", "agreed"),
    [
        ([8], [8], 9, 8),
        ([8], [6], 9, 0),  # 8 is out of the second's reach, 6 of the first's
        ([4, 8], [4, 6], 9, 4),  # 8 lowers the second to 6, which lowers the first to 4
        ([2, 5, 8], [2, 4, 7], 9, 2),
        ([], [9], 9, 0),
        ([4], [6], 10, 10),
    ],
)
def test_parts_vote_until_both_agree(
    first: list[int], second: list[int], asked: int, agreed: int
) -> None:  # 5, 6
    state = HybridState(part(10, first), part(10, second))
    assert state.reach(asked) == agreed
    assert len(state) == 10
    fork = state.fork(asked)
    assert len(fork) == len(fork.attention) == len(fork.recurrent) == agreed
    assert state.truncate(asked) == agreed
    assert len(state) == len(state.attention) == len(state.recurrent) == agreed


MARKS = st.lists(st.integers(0, 12), max_size=6)


@given(lengths=st.tuples(*[st.integers(1, 12)] * 2), marks=st.tuples(MARKS, MARKS), asked=st.integers(-1, 14))
def test_the_vote_is_the_longest_length_that_both_can_hold(
    lengths: tuple[int, int], marks: tuple[list[int], list[int]], asked: int
) -> None:
    """Also where an interrupt left the parts at two lengths."""
    parts = [part(length, marked) for length, marked in zip(lengths, marks, strict=True)]
    can_hold = [{0, length, *state.checkpoint_lengths} for length, state in zip(lengths, parts, strict=True)]
    expected = max((at for at in can_hold[0] & can_hold[1] if at <= asked), default=0)
    state = HybridState(*parts)
    assert state.reach(asked) == expected
    assert state.truncate(asked) == expected
    assert [len(one) for one in parts] == [expected, expected]


# --- two parts, one state ---


def fed(n_tokens: int, *, make_model=HybridModel) -> tuple[HybridModel, HybridTinyState]:
    model = make_model()
    state = model.make_state()
    for start in range(0, n_tokens, 4):
        model.forward(list(range(start, min(start + 4, n_tokens))), state, need_logits=False)
        if start == 8:
            state.mark()  # at 12
    return model, state


def test_bytes_and_slack_are_those_of_both() -> None:
    _, state = fed(20)
    assert state.n_bytes == state.attention.n_bytes + state.recurrent.n_bytes
    assert state.slack == 0
    assert state.attention.slack > 20


@pytest.mark.parametrize("n_committed", [0, 1])
def test_an_interrupt_between_the_commits_loses_what_the_pass_wrote_and_nothing_else(
    n_committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, state = fed(20)
    part = (state.attention, state.recurrent)[n_committed]

    def interrupt(self: object, length: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(part), "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.forward([1, 2, 3], state, need_logits=False)
    assert len(state) == 20
    assert state.truncate(20) == 20  # the attention cache goes back freely, so it was committed first
    assert len(state.attention) == len(state.recurrent) == 20
    after = model.forward([5], state, need_logits=True)
    _, cold = fed(20)
    assert np.array_equal(after, model.forward([5], cold, need_logits=True))


@every_model
@pytest.mark.parametrize("length", [0, 1, 13, 20])
def test_a_restored_state_goes_on_and_goes_back_as_the_exported_one(make_model, length: int) -> None:  # 20
    model, state = fed(length, make_model=make_model)
    _, other = fed(7, make_model=make_model)
    other.restore(length, {name: array.copy() for name, array in state.export().items()})
    for (name, one), (other_name, same) in zip(state.as_floats(), other.as_floats(), strict=True):
        assert name == other_name
        assert np.array_equal(one, same)
    after = [model.forward([3, 4], each, need_logits=True) for each in (state, other)]
    assert np.array_equal(*after)
    assert other.truncate(length + 1) == length  # its end is a checkpoint


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("attention keys 0", "`keys 0`"),
        ("recurrent inputs 1", "`inputs 1`"),
        ("recurrent lengths", "lengths"),
    ],
)
def test_arrays_of_another_state_are_refused_and_leave_both_parts_empty(name: str, shown: str) -> None:  # 20
    model, state = fed(13)
    arrays = dict(state.export())
    for bad in (
        {key: array for key, array in arrays.items() if key != name},
        {**arrays, name: arrays[name][:0]},
    ):
        with pytest.raises(ValueError, match=shown):
            state.restore(13, bad)
        assert len(state) == len(state.attention) == len(state.recurrent) == 0
        state.restore(13, arrays)
    with pytest.raises(ValueError, match="`ring keys 0` is not part of this state"):
        state.restore(13, {**arrays, "ring keys 0": arrays["attention keys 0"]})
    assert len(state) == 0
    logits = model.forward([1, 2], state, need_logits=True)
    assert np.array_equal(logits, model.forward([1, 2], model.make_state(), need_logits=True))


# --- under the real runner: every reply is a cold engine's ---

FIRST = [*range(60, 71)]
SECOND = [*FIRST, *range(20, 27)]


def interrupt_at(model: HybridModel, boundary: str, nth: int) -> None:
    """Interrupt the nth pass, counted from 0, at one of its points."""
    left = nth

    def on_boundary(name: str) -> None:
        nonlocal left
        if name == boundary:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    model.on_boundary = on_boundary


@every_model
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("nth_pass", range(6))
def test_after_an_interrupt_inside_a_pass_every_prompt_is_served_as_by_a_cold_engine(
    make_model, boundary: str, nth_pass: int
) -> None:  # 3
    engine = HybridEngine(make_model())
    engine.run(FIRST, n_new=3)
    interrupt_at(engine.model, boundary, nth_pass)
    with pytest.raises(KeyboardInterrupt):
        engine.run(SECOND, n_new=6, chunk_size=3)
    engine.model.on_boundary = lambda name: None
    for prompt_ids in (SECOND, [*FIRST[:6], 9], FIRST, SECOND):
        engine.run(prompt_ids, n_new=3)


@every_model
@pytest.mark.parametrize("polls", range(12))
def test_after_a_cancel_at_every_boundary_the_next_prompts_are_served_as_by_a_cold_engine(
    make_model, polls: int
) -> None:  # 3
    engine = HybridEngine(make_model())
    engine.run(FIRST, n_new=3)
    cancelled = engine.run(SECOND, n_new=6, polls=polls, chunk_size=3)
    assert cancelled.new_tokens < 6 or polls > 8
    for prompt_ids in (SECOND, [*FIRST[:6], 9], FIRST, SECOND):
        engine.run(prompt_ids, n_new=3)


TURNS = st.lists(st.integers(0, 3), min_size=1, max_size=12)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "retry", "undo", "edit", "branch", "begin anew"]),
        TURNS,
        st.none() | st.integers(0, 8),  # looks at the flag until a cancel
        st.none() | st.tuples(st.sampled_from(BOUNDARIES), st.integers(0, 6)),
    ),
    max_size=10,
)


@every_model
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, n_slots=st.sampled_from([None, 0, 2]), chunk_size=st.sampled_from([1, 3, 64]))
def test_any_order_of_turns_cancels_and_interrupts_gives_a_cold_engines_replies(
    make_model, steps, n_slots: int | None, chunk_size: int
) -> None:  # 6
    engine = HybridEngine(make_model(), n_slots=n_slots)
    prompts: list[list[int]] = []  # of the turns so far
    others: list[list[list[int]]] = []
    said: list[int] = []
    for step, message, polls, fault in steps:
        prompt = [*prompts[-1], *said, *message] if prompts else [50, 51, 52, *message]
        if step == "retry" and prompts:
            prompt = prompts.pop()
        elif step == "undo" and len(prompts) > 1:
            prompts.pop()
            prompt = [*prompts[-1], *said, *message]
        elif step == "edit" and prompts:
            prompt = list(prompts[-1])
            prompt[len(prompt) // 2 :] = message
        elif step == "branch" and prompts:
            others.append(prompts)
            prompts = list(others[len(message) % len(others)])
            prompt = [*prompts[-1], *message]
        elif step == "begin anew":
            prompts, prompt = [], [50, 51, 52, *message]
        if fault is not None:
            interrupt_at(engine.model, *fault)
        try:
            result = engine.run(
                prompt, n_new=4, polls=float("inf") if polls is None else polls, chunk_size=chunk_size
            )
            said = list(result.token_ids)
            prompts.append(prompt)
        except KeyboardInterrupt:
            pass
        engine.model.on_boundary = lambda name: None
