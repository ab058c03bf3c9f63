"""Where the rows of the kernels' cache stand, and when they move; the rest is in `test_layer_cache`."""

import pytest

from tests.cache_harness import ALL, HEAD_DIM, MIXED, N_KV_HEADS, WINDOW, FedPacked, ScarceNumpy, Windows
from turbospark_chat.models import layer_rows
from turbospark_chat.models.packed_layer import CachePart, PackedLayer
from turbospark_chat.models.retention import GROWTH_STEP

WINDOWS = pytest.mark.parametrize("windows", [ALL, MIXED], ids=["all", "mixed"])


def addresses(fed: FedPacked) -> list[int]:
    return [fed.cache.address(layer, part) for layer in range(len(fed.windows)) for part in CachePart]


def test_a_position_takes_two_bytes_a_number_and_four_a_head() -> None:
    fed = FedPacked()
    assert fed.cache.room == range(0)
    fed.cache.reserve(1)
    assert fed.cache.n_bytes == GROWTH_STEP * len(ALL) * 2 * N_KV_HEADS * (2 * HEAD_DIM + 4)
    assert fed.cache.room == range(GROWTH_STEP)


@WINDOWS
def test_room_enough_is_left_where_it_is(windows: Windows) -> None:
    fed = FedPacked(windows)
    fed.cache.reserve(100)
    before = (fed.cache.n_moves, addresses(fed))
    fed.cache.reserve(GROWTH_STEP)
    assert (fed.cache.n_moves, addresses(fed)) == before


def test_the_room_begins_where_the_layer_that_holds_least_can_go_on() -> None:  # case 5, last line
    fed = FedPacked((None, 500, WINDOW))
    fed.feed(1000, at_once=10)
    first = fed.cache.room.start
    assert (fed.cache.reach(first), fed.cache.reach(first - 1)) == (first, 0)


@WINDOWS
@pytest.mark.parametrize("n_arrays", range(len(ALL) * len(CachePart)))
def test_arrays_that_a_failure_to_grow_has_moved_are_told_of(n_arrays: int, windows: Windows) -> None:
    fed = FedPacked(windows)
    fed.feed(GROWTH_STEP)
    before, n_moves = addresses(fed), fed.cache.n_moves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_rows, "np", ScarceNumpy(n_arrays))
        with pytest.raises(MemoryError):
            fed.cache.reserve(GROWTH_STEP + 1)
    assert (fed.cache.n_moves > n_moves) == (addresses(fed) != before) == (n_arrays >= len(CachePart))


@pytest.mark.parametrize("goal", [0, 300])
def test_a_cut_that_brings_other_arrays_tells_of_it(goal: int) -> None:
    fed = FedPacked(MIXED)
    fed.feed(300)
    fed.mark()
    fed.feed(500, at_once=10)
    before, n_moves = addresses(fed), fed.cache.n_moves
    assert fed.truncate(goal) == goal
    assert addresses(fed) != before
    assert fed.cache.n_moves > n_moves


def test_a_layers_address_is_that_of_position_0_wherever_its_rows_begin() -> None:
    layer = PackedLayer.empty(n_kv_heads=2, head_dim=HEAD_DIM).copy(0, 0, capacity=50).copy(10, 40)
    for part in CachePart:
        array = layer.between(10, 40)[part]
        row_bytes = 4 if part.is_scales else 2 * HEAD_DIM
        assert layer.address(part) == array.ctypes.data - 10 * row_bytes
