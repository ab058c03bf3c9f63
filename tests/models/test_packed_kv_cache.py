"""The packed cache's length and contents as it grows, is cut, and fails to grow."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from turbospark_chat.models import packed_kv_cache
from turbospark_chat.models.kv_cache import GROWTH_STEP
from turbospark_chat.models.packed_kv_cache import CachePart, PackedKvCache

N_LAYERS, N_KV_HEADS, HEAD_DIM = 3, 2, 16
POSITION_BYTES = 2 * N_LAYERS * N_KV_HEADS * (2 * HEAD_DIM + 4)  # keys and values, and a scale of each


def empty_cache() -> PackedKvCache:
    return PackedKvCache(n_layers=N_LAYERS, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM)


def arrays(cache: PackedKvCache) -> Iterator[tuple[int, NDArray[np.generic]]]:
    """Yield every array as kernels see it, by its address, with a number of its own."""
    for layer in range(N_LAYERS):
        for number, part in enumerate(CachePart):
            shape = (N_KV_HEADS, cache.capacity(layer), *(() if part.is_scales else (HEAD_DIM,)))
            kind = ctypes.c_float if part.is_scales else ctypes.c_int16
            memory = (kind * int(np.prod(shape))).from_address(cache.address(layer, part))
            yield 10 * layer + number, np.frombuffer(memory, kind).reshape(shape)


def contents(number: int, array: NDArray[np.generic], first: int, last: int) -> NDArray[np.generic]:
    """Return numbers that tell their array, head and position."""
    cells = 1000 * np.arange(N_KV_HEADS)[:, None] + 7 * np.arange(first, last) + number
    trailing = array.shape[2:]
    return np.broadcast_to(cells.reshape(*cells.shape, *(1,) * len(trailing)), (*cells.shape, *trailing))


def feed(cache: PackedKvCache, n_tokens: int) -> None:
    """Write tokens as a forward pass does."""
    first, last = len(cache), len(cache) + n_tokens
    cache.reserve(last)
    for number, array in arrays(cache):
        array[:, first:last] = contents(number, array, first, last)
    cache.commit(last)


def check_contents(cache: PackedKvCache) -> None:
    for number, array in arrays(cache):
        assert np.array_equal(array[:, : len(cache)], contents(number, array, 0, len(cache)))


def test_a_new_cache_is_empty_and_takes_no_memory() -> None:
    cache = empty_cache()
    assert (len(cache), cache.n_bytes, cache.n_moves) == (0, 0, 0)


def test_a_position_takes_two_bytes_a_number_and_four_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_room_enough_is_left_where_it_is() -> None:
    cache = empty_cache()
    cache.reserve(100)
    before = (cache.n_moves, [cache.address(0, part) for part in CachePart])
    cache.reserve(GROWTH_STEP)
    assert (cache.n_moves, [cache.address(0, part) for part in CachePart]) == before


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=12))
def test_filled_positions_stay_whatever_is_fed_and_cut(steps: list[tuple[bool, int]]) -> None:
    cache, length = empty_cache(), 0
    for is_cut, n in steps:
        if is_cut:
            length = min(length, n)
            assert cache.truncate(n) == length
        else:
            length += n
            feed(cache, n)
        assert len(cache) == length
        check_contents(cache)


def test_a_cut_below_nothing_empties_it() -> None:
    cache = empty_cache()
    feed(cache, 5)
    assert (cache.truncate(-3), len(cache)) == (0, 0)


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


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("n_arrays", range(N_LAYERS * len(CachePart)))
def test_a_failure_to_grow_loses_no_position_and_tells_of_each_move(
    n_arrays: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = empty_cache()
    feed(cache, GROWTH_STEP)
    addresses = [cache.address(layer, CachePart.KEYS) for layer in range(N_LAYERS)]
    n_moves = cache.n_moves
    with monkeypatch.context() as patch:
        patch.setattr(packed_kv_cache, "np", ScarceNumpy(n_arrays, error))
        with pytest.raises(error):
            cache.reserve(GROWTH_STEP + 1)
    assert len(cache) == GROWTH_STEP
    check_contents(cache)
    has_moved = [cache.address(layer, CachePart.KEYS) for layer in range(N_LAYERS)] != addresses
    assert (cache.n_moves > n_moves) == has_moved == (n_arrays >= len(CachePart))
    feed(cache, 1)
    check_contents(cache)
