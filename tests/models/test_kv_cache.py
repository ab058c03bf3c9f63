"""The cache's length and contents as it grows, is cut, and fails to grow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.models import kv_cache
from turbospark_chat.models.kv_cache import GROWTH_STEP, KvCache
from turbospark_chat.models.layers import Array

N_LAYERS, N_KV_HEADS, HEAD_DIM = 3, 2, 4
POSITION_BYTES = 2 * N_LAYERS * N_KV_HEADS * HEAD_DIM * 4  # keys and values in float32


def empty_cache() -> KvCache:
    return KvCache(n_layers=N_LAYERS, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM)


def rows(layer: int, position: int, n_tokens: int, *, mark: int = 0) -> Array:
    """Rows (T, KV, Hd) that tell their layer, position, head and dimension."""
    shape = (n_tokens, N_KV_HEADS, HEAD_DIM)
    positions = np.arange(position, position + n_tokens)[:, None, None]
    cells = np.arange(N_KV_HEADS * HEAD_DIM).reshape(1, N_KV_HEADS, HEAD_DIM)
    values = mark + layer * 10**6 + positions * 100 + cells
    return np.broadcast_to(values, shape).astype(np.float32)


def feed(cache: KvCache, n_tokens: int, *, mark: int = 0) -> list[tuple[Array, Array]]:
    """Write tokens into every layer, as a forward pass does, and commit them; return what each layer sees."""
    position = len(cache)
    seen = []
    for layer in range(N_LAYERS):
        keys = rows(layer, position, n_tokens, mark=mark)
        seen.append(cache.write(layer, keys, -keys, position))
    cache.commit(position + n_tokens)
    return seen


def check_contents(seen: list[tuple[Array, Array]], length: int) -> None:
    for layer, (keys, values) in enumerate(seen):
        expected = rows(layer, 0, length).transpose(1, 0, 2)  # (KV, S, Hd)
        assert np.array_equal(keys, expected)
        assert np.array_equal(values, -expected)


def test_new_cache_is_empty_and_takes_no_memory() -> None:
    cache = empty_cache()
    assert (len(cache), cache.n_bytes) == (0, 0)


def test_capacity_grows_in_steps_and_is_never_the_length() -> None:  # A17
    cache = empty_cache()
    capacities = []
    for length in range(1, 1100):
        feed(cache, 1)
        assert len(cache) == length
        capacities.append(cache.n_bytes // POSITION_BYTES)
    assert all(capacity % GROWTH_STEP == 0 for capacity in capacities)
    assert all(length <= capacity for length, capacity in enumerate(capacities, start=1))
    assert sorted(set(capacities)) == [256, 512, 768, 1280]  # half as much again, so copying stays linear


def test_cut_is_to_positions_whatever_the_step() -> None:  # A17
    cache = empty_cache()
    feed(cache, 300)
    assert len(cache) == 300
    assert cache.truncate(280) == 280
    assert len(cache) == 280
    check_contents(feed(cache, 1), 281)


@pytest.mark.parametrize("length", [255, 256, 257])
def test_prefix_around_a_step_is_kept_whole(length: int) -> None:  # A17
    cache = empty_cache()
    feed(cache, 400)
    assert cache.truncate(length) == length
    check_contents(feed(cache, 20), length + 20)


@pytest.mark.parametrize(("asked", "kept"), [(99, 10), (10, 10), (3, 3), (0, 0), (-5, 0)])
def test_cut_returns_how_many_are_left(asked: int, kept: int) -> None:
    cache = empty_cache()
    feed(cache, 10)
    assert cache.truncate(asked) == kept
    assert len(cache) == kept


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 300)), max_size=8))
def test_contents_survive_every_growth_and_cut(steps: list[tuple[int, int]]) -> None:
    cache = empty_cache()
    for cut, n_tokens in steps:
        feed(cache, 7, mark=10**5)  # a branch that is given up
        cache.truncate(min(cut, len(cache) - 7))
        check_contents(feed(cache, n_tokens), len(cache))


def test_what_is_written_counts_only_once_committed() -> None:
    cache = empty_cache()
    feed(cache, 5)
    cache.write(0, rows(0, 5, 3, mark=1), rows(0, 5, 3, mark=1), 5)  # a pass that goes no further
    assert len(cache) == 5
    check_contents(feed(cache, 2), 7)


class Allocations:
    """Stands for numpy.empty in the cache: counts calls, and fails at a chosen one."""

    def __init__(self) -> None:
        self.count = 0
        self.fails_at: int | None = None
        self._empty = np.empty

    def __call__(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        self.count += 1
        if self.count == self.fails_at:
            raise MemoryError
        return self._empty(shape, dtype)


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Allocations:
    double = Allocations()
    monkeypatch.setattr(kv_cache.np, "empty", double)
    return double


@pytest.mark.parametrize("nth", range(1, 2 * N_LAYERS + 1))
def test_growth_that_fails_leaves_length_and_contents(nth: int, allocations: Allocations) -> None:
    cache = empty_cache()
    feed(cache, GROWTH_STEP)
    allocations.fails_at = allocations.count + nth
    with pytest.raises(MemoryError):
        feed(cache, 1, mark=1)
    assert len(cache) == GROWTH_STEP
    check_contents(feed(cache, 2), GROWTH_STEP + 2)


def test_second_turn_with_room_for_it_allocates_and_copies_nothing(allocations: Allocations) -> None:  # T60
    cache = empty_cache()
    first = feed(cache, 100)
    n_allocated = allocations.count
    cache.truncate(60)
    second = feed(cache, 150)
    assert allocations.count == n_allocated
    for before, after in zip(first, second, strict=True):
        assert all(old.base is new.base for old, new in zip(before, after, strict=True))
