"""The state of recurrent layers: what counts when, where it goes back to, and that nothing kept ever changes."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from turbospark_chat.models.delta_net import DeltaMemory, DeltaShape
from turbospark_chat.models.delta_state import DeltaState

SHAPE = DeltaShape(n_heads=2, n_key_heads=1, key_dim=3, value_dim=2, kernel_size=4)
N_LAYERS = 3
LAYER_BYTES = 4 * (2 * 3 * 2 + 3 * (2 * 3 + 2 * 2))
Arrays = dict[str, NDArray]  # type: ignore[type-arg]


def empty_state(n_checkpoints: int = 8) -> DeltaState:
    return DeltaState(shape=SHAPE, n_layers=N_LAYERS, n_checkpoints=n_checkpoints)


def memory_after(layer: int, length: int, branch: int = 0) -> DeltaMemory:
    """A memory that tells its layer, length and branch."""
    empty = DeltaMemory.empty(SHAPE)
    number = np.float32(1000 * branch + 100 * layer + length)
    return DeltaMemory(empty.matrices + number, empty.inputs - number)


def write(state: DeltaState, n_tokens: int, *, branch: int = 0, layers: int = N_LAYERS) -> int:
    length = len(state) + n_tokens
    for layer in range(layers):
        state.write(layer, memory_after(layer, length, branch))
    return length


def feed(state: DeltaState, n_tokens: int, *, branch: int = 0, marks: bool = False) -> None:
    state.commit(write(state, n_tokens, branch=branch))
    if marks:
        state.mark()


def check(state: DeltaState, length: int, branch: int = 0) -> None:
    """The state holds exactly what it had after `length` positions."""
    assert len(state) == length
    for layer in range(N_LAYERS):
        expected = memory_after(layer, length, branch) if length else DeltaMemory.empty(SHAPE)
        assert np.array_equal(state.read(layer).matrices, expected.matrices)
        assert np.array_equal(state.read(layer).inputs, expected.inputs)


# --- what counts when ---


def test_what_is_written_counts_only_once_committed() -> None:
    state = empty_state()
    feed(state, 5)
    write(state, 3, branch=1)
    check(state, 5)
    feed(state, 2)
    check(state, 7)


@pytest.mark.parametrize("n_written", range(N_LAYERS + 1))
def test_a_pass_that_fails_half_way_leaves_the_state_and_the_next_pass_alone(n_written: int) -> None:
    state = empty_state()
    feed(state, 5)
    write(state, 3, branch=1, layers=n_written)
    assert state.truncate(5) == 5
    check(state, 5)
    feed(state, 3)
    check(state, 8)


@pytest.mark.parametrize("is_earlier_committed", [False, True])
def test_a_layer_that_wrote_nothing_is_not_committed_with_what_an_earlier_pass_wrote(
    is_earlier_committed: bool,
) -> None:
    state = empty_state()
    length = write(state, 3)
    if is_earlier_committed:
        state.commit(length)
    else:
        state.truncate(0)
    before = len(state)
    length = write(state, 3, layers=N_LAYERS - 1)
    with pytest.raises(KeyError):
        state.commit(length)
    check(state, before)


# --- going back ---


@pytest.mark.parametrize(
    ("asked", "left"), [(99, 12), (12, 12), (11, 9), (9, 9), (8, 4), (4, 4), (3, 0), (0, 0), (-1, 0)]
)
def test_it_goes_back_to_the_newest_checkpoint_at_or_before(asked: int, left: int) -> None:  # 6
    state = empty_state()
    for n_tokens, marks in ((4, True), (5, True), (3, False)):
        feed(state, n_tokens, marks=marks)
    assert state.slack == 0
    assert state.reach(asked) == left
    check(state, 12)
    assert state.truncate(asked) == left
    check(state, left)
    assert state.checkpoint_lengths == tuple(at for at in (4, 9) if at <= left)


def test_a_checkpoint_of_an_abandoned_branch_is_never_restored() -> None:  # 6
    state = empty_state()
    feed(state, 4, marks=True)
    feed(state, 2, branch=1, marks=True)
    state.truncate(5)
    feed(state, 6)
    assert state.truncate(8) == 4
    check(state, 4)


def test_a_checkpoint_stays_as_it_was_and_serves_twice() -> None:  # A11
    state = empty_state()
    feed(state, 4, marks=True)
    for branch in (1, 2):
        for _ in range(20):
            feed(state, 1, branch=branch)
        assert state.truncate(4) == 4
        check(state, 4)


def test_an_empty_state_takes_no_checkpoint() -> None:
    state = empty_state()
    state.mark()
    assert state.checkpoint_lengths == ()


def test_checkpoints_are_bounded_and_counted_in_bytes() -> None:  # G7
    state = empty_state(n_checkpoints=3)
    for _ in range(50):
        feed(state, 20, marks=True)
        feed(state, 1)
        assert state.n_bytes == (1 + len(state.checkpoint_lengths)) * N_LAYERS * LAYER_BYTES
    assert len(state.checkpoint_lengths) == 3
    assert state.checkpoint_lengths[0] == 20  # the oldest
    assert state.checkpoint_lengths[-1] == 21 * 49 + 20  # and the newest


# --- forks ---


@pytest.mark.parametrize(("asked", "left"), [(12, 12), (10, 9), (5, 4), (3, 0)])
def test_a_fork_and_its_origin_go_their_own_ways(asked: int, left: int) -> None:
    state = empty_state()
    for n_tokens, marks in ((4, True), (5, True), (3, False)):
        feed(state, n_tokens, marks=marks)
    fork = state.fork(asked)
    check(fork, left)
    feed(fork, 2, branch=1, marks=True)
    check(state, 12)
    assert state.checkpoint_lengths == (4, 9)
    feed(state, 2, branch=2)
    check(fork, left + 2, branch=1)
    assert fork.truncate(left + 1) == max((at for at in (4, 9) if at <= left), default=0)
    check(state, 14, branch=2)


# --- export and restore ---


def three_moments() -> DeltaState:
    state = empty_state()
    for n_tokens, marks in ((4, True), (5, True), (3, False)):
        feed(state, n_tokens, marks=marks)
    return state


def copied(state: DeltaState) -> Arrays:
    return {name: np.array(array) for name, array in state.export().items()}


@pytest.mark.parametrize("is_used", [False, True])
def test_a_restored_state_goes_on_and_goes_back_as_the_exported_one(is_used: bool) -> None:  # 20
    state, other = three_moments(), empty_state()
    if is_used:
        feed(other, 7, branch=3, marks=True)
    other.restore(12, state.export())
    check(other, 12)
    assert other.checkpoint_lengths == (4, 9, 12)  # its end is one to come back to as well
    feed(other, 3)
    assert other.truncate(14) == 12
    assert other.truncate(11) == 9
    check(other, 9)


def test_a_restored_state_holds_copies() -> None:
    arrays, other = copied(three_moments()), empty_state()
    other.restore(12, arrays)
    for array in arrays.values():
        array[...] = 0
    check(other, 12)


def test_an_empty_state_can_be_restored() -> None:
    other = three_moments()
    other.restore(0, empty_state().export())
    check(other, 0)
    assert other.checkpoint_lengths == ()


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def changed(name: str, change: Callable[[NDArray], NDArray]) -> Callable[[Arrays], Arrays]:  # type: ignore[type-arg]
    return lambda arrays: {**arrays, name: change(arrays[name])}


@pytest.mark.parametrize(
    "damage",
    [
        without("lengths"),
        without("inputs 1"),
        without("matrices 0"),
        changed("lengths", lambda a: a[::-1]),
        changed("lengths", lambda a: a[:-1]),
        changed("lengths", lambda a: a - 4),
        changed("lengths", lambda a: a.astype(np.float32)),
        changed("lengths", lambda a: a.reshape(1, -1)),
        changed("lengths", lambda a: a[:0]),
        changed("lengths", lambda a: np.array([-4, 9, 12])),
        changed("matrices 2", lambda a: a[:2]),
        changed("matrices 2", lambda a: a.astype(np.float64)),
        changed("inputs 0", lambda a: a[:, :1]),
        lambda arrays: {**arrays, "matrices 3": arrays["matrices 0"]},
    ],
)
def test_arrays_of_another_state_are_refused_and_leave_it_empty(damage) -> None:  # 20
    other = three_moments()
    with pytest.raises(ValueError, match="lengths|inputs|matrices"):
        other.restore(12, damage(copied(three_moments())))
    check(other, 0)
    assert other.checkpoint_lengths == ()
    feed(other, 5)
    assert other.reach(4) == 0


def test_the_floats_are_what_the_next_token_sees_and_no_checkpoint() -> None:
    floats = dict(three_moments().as_floats())
    assert list(floats) == [f"{part} {layer}" for layer in range(N_LAYERS) for part in ("matrices", "inputs")]
    assert all(
        np.all(np.abs(array) == 100 * (index // 2) + 12) for index, array in enumerate(floats.values())
    )
