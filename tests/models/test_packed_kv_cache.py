"""The packed cache's length and contents as it grows, is cut, forked and restored, and fails to grow.

Every number tells its array, its head, and the ids fed up to its position: rows of another past would show.
"""

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from turbospark_chat.models import packed_layer
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.packed_layer import CachePart, PackedLayer
from turbospark_chat.models.retention import GROWTH_STEP, WINDOW_CHECKPOINTS

N_LAYERS, N_KV_HEADS, HEAD_DIM = 3, 2, 16
POSITION_BYTES = 2 * N_LAYERS * N_KV_HEADS * (2 * HEAD_DIM + 4)  # keys and values, and a scale of each
ALL = (None,) * N_LAYERS
WINDOW, SLACK = 40, 30
MIXED = (WINDOW, None, 7)
WINDOWS = pytest.mark.parametrize("windows", [ALL, MIXED], ids=["all", "mixed"])
Windows = Sequence[int | None]


def empty_cache(windows: Windows = ALL, *, slack: int = SLACK) -> PackedKvCache:
    return PackedKvCache(windows=windows, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, slack=slack)


def rows(cache: PackedKvCache, first: int, last: int) -> Iterator[tuple[int, NDArray[np.generic]]]:
    """Yield positions of every array as kernels see them, by address and capacity, with the array's number."""
    for layer in range(N_LAYERS):
        for number, part in enumerate(CachePart):
            kind: type[Any] = ctypes.c_float if part.is_scales else ctypes.c_int16
            shape = part.shape(n_kv_heads=1, n_rows=last - first, head_dim=HEAD_DIM)
            row_bytes = int(np.prod(shape[2:])) * ctypes.sizeof(kind)
            for head in range(N_KV_HEADS):
                row = head * cache.capacity(layer) + first
                memory = (kind * int(np.prod(shape))).from_address(
                    cache.address(layer, part) + row * row_bytes
                )
                yield 10 * layer + number + 100 * head, np.frombuffer(memory, kind).reshape(shape)[0]


def contents(number: int, array: NDArray[np.generic], ids: Sequence[int], first: int) -> NDArray[np.generic]:
    """Return numbers that tell their array, head and all ids up to each position."""
    cells = (np.cumsum(ids)[first:] * 7 + number) % 30_000
    return np.broadcast_to(cells.reshape(-1, *(1,) * (array.ndim - 1)), array.shape)


class Fed:
    """A cache, and the ids that were fed to it."""

    def __init__(self, cache: PackedKvCache, ids: Sequence[int] = ()) -> None:
        self.cache, self.ids = cache, list(ids)

    def feed(self, n_tokens: int, *, id_: int = 1) -> None:
        """Write tokens as a forward pass does."""
        first, last = len(self.cache), len(self.cache) + n_tokens
        assert first == len(self.ids)
        self.ids += [id_] * n_tokens
        self.cache.reserve(last)
        assert self.cache.room.start <= first <= last <= self.cache.room.stop
        for number, array in rows(self.cache, first, last):
            array[:] = contents(number, array, self.ids, first)
        self.cache.commit(last)

    def truncate(self, length: int) -> int:
        n_expected = self.cache.reach(length)
        assert self.cache.truncate(length) == len(self.cache) == n_expected
        del self.ids[n_expected:]
        return n_expected

    def check(self) -> None:
        """Check the length, and all that the next token can see."""
        length = len(self.cache)
        assert length == len(self.ids)
        for name, array in self.cache.as_floats():
            layer = int(name.rpartition(" ")[2])
            window = self.cache._windows[layer]
            n_seen = length if window is None else min(length, window - 1)
            assert array.shape == (N_KV_HEADS, n_seen, HEAD_DIM)
        assert self.cache.room.start <= length <= self.cache.room.stop
        for layer, window in enumerate(self.cache._windows):
            first = 0 if window is None else max(0, length - window + 1)
            for number, array in rows(self.cache, first, length):
                if number % 100 // 10 == layer:
                    assert np.array_equal(array, contents(number, array, self.ids, first))


def as_floats(cache: PackedKvCache) -> Mapping[str, NDArray[np.float32]]:
    return dict(cache.as_floats())


def assert_same(cache: PackedKvCache, other: PackedKvCache) -> None:
    assert len(cache) == len(other)
    one, two = as_floats(cache), as_floats(other)
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


@WINDOWS
def test_a_new_cache_is_empty_and_takes_no_memory(windows: Windows) -> None:
    cache = empty_cache(windows)
    assert (len(cache), cache.n_bytes, cache.n_moves, cache.room) == (0, 0, 0, range(0))


def test_a_position_takes_two_bytes_a_number_and_four_a_head() -> None:
    cache = empty_cache()
    cache.reserve(1)
    assert cache.n_bytes == GROWTH_STEP * POSITION_BYTES


def test_capacity_grows_in_steps_by_half_and_never_less_than_needed() -> None:
    cache = empty_cache()
    capacities = []
    for length in range(1, 1100):
        cache.reserve(length)
        cache.commit(length)
        capacities.append(cache.capacity(N_LAYERS - 1))
    assert sorted(set(capacities)) == [256, 512, 768, 1280]
    assert all(length <= capacity for length, capacity in enumerate(capacities, start=1))
    assert cache.n_moves == N_LAYERS * 4


@WINDOWS
def test_room_enough_is_left_where_it_is(windows: Windows) -> None:
    cache = empty_cache(windows)
    cache.reserve(100)
    before = (cache.n_moves, [cache.address(0, part) for part in CachePart])
    cache.reserve(GROWTH_STEP)
    assert (cache.n_moves, [cache.address(0, part) for part in CachePart]) == before


def test_without_a_window_it_goes_back_anywhere_and_takes_no_checkpoint() -> None:
    fed = Fed(empty_cache())
    fed.feed(1000)
    n_bytes = fed.cache.n_bytes
    fed.cache.mark()
    assert (fed.cache.slack, fed.cache.n_bytes) == (sys.maxsize, n_bytes)
    assert [fed.cache.reach(length) for length in (-3, 0, 1, 999, 1000, 2000)] == [0, 0, 1, 999, 1000, 1000]


# --- windows ---


def test_a_window_takes_as_much_memory_for_many_positions_as_for_some() -> None:
    fed = Fed(empty_cache((WINDOW,) * N_LAYERS))
    sizes = []
    for _ in range(60):
        fed.feed(50)
        sizes.append(fed.cache.n_bytes)
        fed.check()
    assert len(set(sizes[10:])) == 1
    assert sizes[-1] <= (WINDOW + SLACK + 2 * GROWTH_STEP) * POSITION_BYTES


def test_a_window_is_moved_once_a_step_and_not_at_every_token() -> None:
    fed = Fed(empty_cache(MIXED))
    fed.feed(1500)
    n_moves = fed.cache.n_moves
    for length in range(1501, 3001):
        fed.cache.reserve(length)
        fed.cache.commit(length)
    n_each = -(-1500 // (GROWTH_STEP - 1))
    assert n_moves < fed.cache.n_moves <= n_moves + N_LAYERS * (n_each + 1)


def test_what_one_long_pass_made_room_for_is_given_back() -> None:
    fed = Fed(empty_cache((WINDOW,) * N_LAYERS))
    fed.feed(5000)
    while_long = fed.cache.n_bytes
    fed.feed(500)
    assert fed.cache.n_bytes < while_long / 4
    fed.check()


@pytest.mark.parametrize("slack", [0, 1, 5, SLACK, 700])
@pytest.mark.parametrize("length", [1, 7, 39, 40, 41, 255, 256, 257, 300, 511, 1000])
def test_it_goes_back_by_its_slack_from_anywhere(length: int, slack: int) -> None:
    fed = Fed(empty_cache(MIXED, slack=slack))
    while len(fed.cache) < length:
        fed.feed(min(10, length - len(fed.cache)))
    assert fed.cache.slack == slack
    n_kept = max(length - slack, 0)
    assert fed.truncate(n_kept) == n_kept
    fed.check()
    fed.feed(20, id_=5)
    fed.check()


@pytest.mark.parametrize("length", [300, 700])
def test_the_prompt_of_before_needs_its_last_token_alone(length: int) -> None:
    # A8: the test for whether the window is still there is no stricter than it has to be
    fed = Fed(empty_cache(MIXED, slack=1))
    fed.feed(length)
    assert fed.cache.reach(length - 1) == length - 1


def test_it_goes_nowhere_where_its_rows_are_gone() -> None:
    # case 5: positions that were overwritten cannot be gone back to, and never seem as if they could
    fed = Fed(empty_cache(MIXED))
    for _ in range(100):
        fed.feed(10)
    assert fed.cache.reach(500) == 0
    assert fed.truncate(500) == 0
    fed.check()
    fed.feed(400, id_=3)
    fed.check()


def test_the_layer_that_holds_least_decides() -> None:  # case 5, last line
    fed = Fed(empty_cache((None, 500, WINDOW)))
    for _ in range(100):
        fed.feed(10)
    held = fed.cache.room.start
    assert fed.cache.reach(held) == held
    assert fed.cache.reach(held - 1) == 0


def test_a_length_that_was_marked_is_come_back_to() -> None:
    fed = Fed(empty_cache(MIXED))
    for length in (50, 300):
        while len(fed.cache) < length:
            fed.feed(10)
        fed.cache.mark()
    while len(fed.cache) < 1000:
        fed.feed(10)
    assert [fed.cache.reach(length) for length in (49, 50, 299, 300, 301, 600)] == [0, 50, 50, 300, 300, 300]
    n_moves = fed.cache.n_moves
    assert fed.truncate(600) == 300
    assert fed.cache.n_moves > n_moves  # its arrays are others
    fed.check()
    fed.feed(500, id_=4)
    fed.check()
    assert fed.truncate(299) == 50
    fed.check()
    assert fed.truncate(49) == 0  # a checkpoint has no slack
    fed.check()


def test_checkpoints_are_few_and_their_bytes_counted() -> None:
    fed = Fed(empty_cache(MIXED))
    for _ in range(20):
        fed.feed(50)
        fed.cache.mark()
        fed.cache.mark()
    n_rows = {window: WINDOW_CHECKPOINTS * (window - 1) for window in MIXED if window is not None}
    layers = sum(layer.n_bytes for layer in fed.cache._layers)
    assert fed.cache.n_bytes == layers + sum(n_rows.values()) * POSITION_BYTES // N_LAYERS


def test_what_was_marked_and_then_cut_off_is_forgotten() -> None:
    fed = Fed(empty_cache(MIXED))
    fed.feed(300)
    fed.cache.mark()
    fed.truncate(290)
    fed.feed(10, id_=9)
    for _ in range(50):
        fed.feed(10)
    assert fed.cache.reach(300) == 0


# --- every way, in any order ---


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "feed", "truncate", "back", "mark", "fork", "restore", "reserve"]),
        st.integers(0, 400),
    ),
    max_size=15,
)


@WINDOWS
@settings(deadline=None)
@given(steps=STEPS, slack=st.sampled_from([0, 3, 60, 500]))
def test_it_holds_what_its_ids_say_whatever_is_done(
    windows: Windows, steps: list[tuple[str, int]], slack: int
) -> None:
    fed = Fed(empty_cache(windows, slack=slack))
    left: list[Fed] = []  # what was forked from
    for number, (step, n) in enumerate(steps, start=1):
        match step:
            case "feed":
                fed.feed(n, id_=number)
            case "truncate":
                fed.truncate(n)
            case "back":
                length = len(fed.cache)
                n_kept = fed.truncate(length - n)
                assert n_kept == max(length - n, 0) or n > slack
            case "mark":
                fed.cache.mark()
                assert fed.cache.reach(len(fed.ids)) == len(fed.ids)
            case "fork":
                left.append(fed)
                fork = fed.cache.fork(n)
                assert len(fork) == fed.cache.reach(n)
                fed = Fed(fork, fed.ids[: len(fork)])
            case "restore":
                other = empty_cache(windows, slack=slack)
                Fed(other).feed(n)
                other.restore(len(fed.cache), fed.cache.export())
                fed = Fed(other, fed.ids)
            case "reserve":
                fed.cache.reserve(len(fed.cache) + n)  # for a pass that then fails
        for each in (fed, *left):
            each.check()


@settings(deadline=None, max_examples=30)
@given(n_old=st.integers(0, 600), n_new=st.integers(1, 60))
def test_two_of_one_length_compare_equal_however_much_old_they_keep(n_old: int, n_new: int) -> None:
    in_one, by_and_by = Fed(empty_cache(MIXED, slack=500)), Fed(empty_cache(MIXED, slack=0))
    in_one.feed(n_old + n_new)
    by_and_by.feed(n_old)
    for _ in range(n_new):
        by_and_by.feed(1)
    assert_same(in_one.cache, by_and_by.cache)


@WINDOWS
def test_a_fork_and_its_origin_do_not_change_with_each_other(windows: Windows) -> None:
    fed = Fed(empty_cache(windows))
    fed.feed(400)
    fed.cache.mark()
    fed.feed(300, id_=2)
    forks = [Fed(fed.cache.fork(length), fed.ids[:length]) for length in (400, 400, 690)]
    for number, fork in enumerate(forks, start=3):
        fork.truncate(len(fork.cache) - 5)
        fork.feed(60, id_=number)
    for each in (fed, *forks):
        each.check()
    assert fed.truncate(400) == 400
    fed.check()


# --- restoring ---


@WINDOWS
@pytest.mark.parametrize("length", [0, 1, 30, 39, 40, 300, 1000])
def test_what_is_exported_is_enough_to_go_on_and_back(windows: Windows, length: int) -> None:
    fed = Fed(empty_cache(windows))
    while len(fed.cache) < length:
        fed.feed(min(30, length - len(fed.cache)))
    arrays = {name: np.array(array, order="F") for name, array in fed.cache.export().items()}
    other = Fed(empty_cache(windows), fed.ids)
    other.cache.restore(length, arrays)
    for array in arrays.values():
        array[:] = 0  # they are the caller's
    other.check()
    assert_same(other.cache, fed.cache)
    n_back = max(length - SLACK, 0)
    assert other.truncate(n_back) == n_back
    other.feed(700, id_=2)
    other.check()


def exported(length: int) -> dict[str, NDArray[Any]]:
    fed = Fed(empty_cache(MIXED))
    fed.feed(length)
    return dict(fed.cache.export())


def without_the_last_rows(arrays: dict[str, NDArray[Any]], n: int, *names: str) -> dict[str, NDArray[Any]]:
    return {name: array[:, n:] if name in names else array for name, array in arrays.items()}


ALL_OF_LAYER_0 = [f"{part.value} 0" for part in CachePart]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda arrays: {}, id="nothing"),
        pytest.param(lambda arrays: arrays | {"more": np.zeros(3)}, id="one more"),
        pytest.param(
            lambda arrays: {name: array.astype(np.float32) for name, array in arrays.items()}, id="floats"
        ),
        pytest.param(lambda arrays: {name: array[:1] for name, array in arrays.items()}, id="of one head"),
        pytest.param(lambda arrays: without_the_last_rows(arrays, 1, "values 0"), id="values of fewer"),
        pytest.param(lambda arrays: without_the_last_rows(arrays, 1, "key scales 2"), id="fewer scales"),
        pytest.param(lambda arrays: without_the_last_rows(arrays, 32, *ALL_OF_LAYER_0), id="half a window"),
        pytest.param(lambda arrays: arrays | {"keys 0": np.zeros(3, np.int16)}, id="of one axis"),
    ],
)
def test_arrays_of_another_state_are_refused_and_leave_it_empty(spoil: Any) -> None:
    fed = Fed(empty_cache(MIXED))
    for _ in range(60):
        fed.feed(10)
    fed.cache.mark()
    with pytest.raises(ValueError, match="expected|not part of"):
        fed.cache.restore(70, spoil(exported(70)))
    assert fed.cache.reach(600) == 0
    fed.ids.clear()
    fed.check()
    fed.feed(300)
    fed.check()


# --- failing ---


class ScarceNumpy:
    """numpy, until its memory is used up, or the user interrupts."""

    def __init__(self, n_arrays: int, error: type[BaseException]) -> None:
        self._left, self._error = n_arrays, error

    def __getattr__(self, name: str) -> object:
        return getattr(np, name)

    def empty(self, *arguments: object) -> NDArray[np.generic]:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return np.empty(*arguments)  # type: ignore[call-overload, no-any-return]


@WINDOWS
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("n_arrays", range(N_LAYERS * len(CachePart)))
def test_a_failure_to_grow_loses_no_position_and_tells_of_each_move(
    n_arrays: int, error: type[BaseException], windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(empty_cache(windows))
    fed.feed(GROWTH_STEP)
    addresses = [fed.cache.address(layer, CachePart.KEYS) for layer in range(N_LAYERS)]
    n_moves = fed.cache.n_moves
    with monkeypatch.context() as patch:
        patch.setattr(packed_layer, "np", ScarceNumpy(n_arrays, error))
        with pytest.raises(error):
            fed.cache.reserve(GROWTH_STEP + 1)
    fed.check()
    assert fed.cache.reach(GROWTH_STEP - SLACK) == GROWTH_STEP - SLACK
    has_moved = [fed.cache.address(layer, CachePart.KEYS) for layer in range(N_LAYERS)] != addresses
    assert (fed.cache.n_moves > n_moves) == has_moved == (n_arrays >= len(CachePart))
    fed.feed(1)
    fed.check()


@pytest.mark.parametrize("goal", [0, 300])
@pytest.mark.parametrize("n_arrays", range(2 * len(CachePart)))
def test_a_failure_to_go_back_changes_nothing(
    n_arrays: int, goal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(empty_cache(MIXED))
    fed.feed(300)
    fed.cache.mark()
    for _ in range(50):
        fed.feed(10)
    with monkeypatch.context() as patch:
        patch.setattr(packed_layer, "np", ScarceNumpy(n_arrays, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fed.cache.truncate(goal)
    fed.check()
    assert fed.truncate(goal) == goal
    fed.check()


class Interrupted(PackedKvCache):
    """A cache in which Ctrl-C comes right before the layers of another length take their places."""

    is_armed = False

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_layers" and self.is_armed:
            raise KeyboardInterrupt
        super().__setattr__(name, value)


@pytest.mark.parametrize("goal", [0, 300])
def test_an_interrupt_before_the_layers_take_their_places_is_mended_by_the_same_cut(goal: int) -> None:
    cache = Interrupted(windows=MIXED, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, slack=SLACK)
    fed = Fed(cache)
    fed.feed(300)
    cache.mark()
    for _ in range(50):
        fed.feed(10)
    cache.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        cache.truncate(goal)
    assert goal not in cache.room  # so that no program runs on it as it is
    cache.is_armed = False
    assert fed.truncate(goal) == goal
    fed.check()
    fed.feed(100, id_=8)
    fed.check()


def test_a_layers_address_is_that_of_position_0_wherever_its_rows_begin() -> None:
    layer = PackedLayer.empty(50, n_kv_heads=2, head_dim=HEAD_DIM).copy(10, 40)
    for part in CachePart:
        array = layer.between(10, 40)[part]
        row_bytes = 4 if part.is_scales else 2 * HEAD_DIM
        assert layer.address(part) == array.ctypes.data - 10 * row_bytes
