"""The cache's length and contents as it grows, is cut, drops what no window sees, and fails to grow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.models import kv_cache, retention
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array
from turbospark_chat.models.retention import GROWTH_STEP, WINDOW_CHECKPOINTS, count_rows

N_LAYERS, N_KV_HEADS, HEAD_DIM = 3, 2, 4
POSITION_BYTES = 2 * N_LAYERS * N_KV_HEADS * HEAD_DIM * 4  # keys and values in float32


def empty_cache(windows: Sequence[int | None] = (None,) * N_LAYERS, *, slack: int = 512) -> KvCache:
    return KvCache(windows=windows, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, slack=slack)


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
    for layer in range(len(cache.windows)):
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


# --- windows ---


WINDOW, SLACK = 4, 3


def lengths_within_reach(cache: KvCache) -> list[int]:
    return [length for length in range(len(cache) + 1) if cache.reach(length) == length]


def test_a_token_is_given_the_rows_its_window_holds_and_no_others() -> None:
    cache = empty_cache([WINDOW, None, 1])
    feed(cache, 10)
    seen = feed(cache, 2)  # at positions 10 and 11: the first of them sees back to 7, or itself alone
    for layer, first in enumerate([7, 0, 10]):
        expected = rows(layer, first, 12 - first).transpose(1, 0, 2)
        assert np.array_equal(seen[layer][0], expected)
        assert np.array_equal(seen[layer][1], -expected)


def test_a_window_takes_no_more_memory_however_long_the_context() -> None:
    cache = empty_cache([WINDOW], slack=SLACK)
    sizes = set()
    for _ in range(20):
        feed(cache, 100)
        sizes.add(cache.n_bytes)
    assert max(sizes) <= 2 * N_KV_HEADS * HEAD_DIM * 4 * 2 * GROWTH_STEP


def test_without_windows_it_goes_back_anywhere_and_marks_copy_nothing() -> None:
    cache = empty_cache()
    feed(cache, 900)
    n_bytes = cache.n_bytes
    cache.mark()
    assert (cache.slack > 10**9, cache.n_bytes) == (True, n_bytes)
    assert cache.reach(1) == 1


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows move as often as they can."""
    monkeypatch.setattr(retention, "GROWTH_STEP", 1)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("windows", "slack", "kept"),
    [
        # Going back to n needs the positions from n - W + 1 on; 12 are fed one by one.
        pytest.param([4], 0, 0, id="5 positions 6 to 8 are needed, and 6 is gone"),
        pytest.param([4], 3, 9, id="within the slack"),
        pytest.param([4, 6], 3, 9, id="both layers within it"),
        pytest.param([4, None], 0, 0, id="5 the least of the layers"),
        pytest.param([None, None], 0, 9, id="no window"),
    ],
)
def test_cut_further_than_a_window_holds_goes_to_0_and_never_to_a_wrong_state(
    windows: list[int | None], slack: int, kept: int
) -> None:
    cache = empty_cache(windows, slack=slack)
    for _ in range(12):
        feed(cache, 1)
    assert (cache.reach(9), len(cache)) == (kept, 12)
    assert cache.truncate(9) == kept
    for layer, (keys, _) in enumerate(feed(cache, 1)):
        first = 0 if windows[layer] is None else max(0, kept + 1 - (windows[layer] or 0))
        assert np.array_equal(keys, rows(layer, first, kept + 1 - first).transpose(1, 0, 2))


@pytest.mark.usefixtures("small_steps")
def test_the_last_position_can_be_fed_again_even_without_slack() -> None:  # A8
    cache = empty_cache([WINDOW], slack=0)
    for _ in range(12):
        feed(cache, 1)
    assert cache.truncate(11) == 11


@pytest.mark.usefixtures("small_steps")
def test_beyond_the_slack_it_goes_back_to_the_newest_mark_as_often_as_asked() -> None:  # 6, A11
    cache = empty_cache([WINDOW, None], slack=SLACK)
    for length in range(1, 91):
        feed(cache, 1)
        if length in (6, 20, 60):
            cache.mark()
    for _ in range(2):
        assert cache.truncate(59) == 20  # and not to 60, which is past it
        assert lengths_within_reach(cache) == [0, 6, 20]
        for length in range(21, 91):
            keys, _ = feed(cache, 1)[0]
            assert np.array_equal(keys, rows(0, length - WINDOW, WINDOW).transpose(1, 0, 2))
    assert cache.truncate(19) == 6
    assert cache.truncate(5) == 0  # a mark holds what goes on from it, and nothing to go back on


@pytest.mark.usefixtures("small_steps")
def test_a_mark_on_a_branch_that_was_given_up_is_never_gone_back_to() -> None:  # 6
    cache = empty_cache([WINDOW, None], slack=SLACK)
    feed(cache, 10, mark=10**5)
    cache.mark()
    assert cache.truncate(8) == 8
    for _ in range(30):
        feed(cache, 1)
    assert cache.truncate(12) == 0


def test_two_caches_show_the_same_whatever_else_they_hold() -> None:
    long, short = empty_cache([WINDOW, None]), empty_cache([WINDOW, None], slack=0)
    feed(long, 20)
    arrays = long.export()
    short.restore(
        20, {name: array[:, -3:] if name.endswith("0") else array for name, array in arrays.items()}
    )
    shown = [dict(cache.as_floats()) for cache in (long, short)]
    assert [array.shape[1] for array in shown[0].values()] == [3, 3, 20, 20]
    for name, array in shown[0].items():
        assert np.array_equal(array, shown[1][name])


@pytest.mark.usefixtures("small_steps")
def test_no_more_marks_are_kept_than_are_counted() -> None:  # G7
    cache = empty_cache([WINDOW, None], slack=SLACK)
    for _ in range(50):
        feed(cache, 10)
        cache.mark()
    assert [length for length in lengths_within_reach(cache) if 0 < length < 490][0] == 10
    assert len(cache) == 500
    assert cache.n_bytes <= POSITION_BYTES // N_LAYERS * count_rows([WINDOW, None], 750, slack=SLACK)
    cache.truncate(0)
    assert lengths_within_reach(cache) == [0]


@pytest.mark.usefixtures("small_steps")
def test_a_cut_to_0_after_rows_were_dropped_leaves_nothing_behind() -> None:  # A13
    cache = empty_cache([WINDOW, None], slack=0)
    for _ in range(20):
        feed(cache, 1, mark=10**5)
    assert cache.truncate(1) == 0
    assert cache.truncate(5) == 0
    feed(cache, 1)
    assert cache.truncate(1) == 1
    check_contents(feed(cache, 2), 3)


def test_a_cut_that_is_interrupted_leaves_an_empty_cache_and_no_mixed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "GROWTH_STEP", 1)
    cache = empty_cache([WINDOW, WINDOW], slack=0)
    feed(cache, 10)
    cache.mark()
    for _ in range(10):
        feed(cache, 1)
    copy, n_copies = kv_cache.LayerRows.copy, 0

    def interrupted(layer_rows: kv_cache.LayerRows, start: int, end: int) -> kv_cache.LayerRows:
        nonlocal n_copies
        n_copies += 1
        if n_copies == 2:
            raise KeyboardInterrupt
        return copy(layer_rows, start, end)

    monkeypatch.setattr(kv_cache.LayerRows, "copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.truncate(10)
    assert (len(cache), cache.reach(99)) == (0, 0)
    check_contents([(keys[:, :3], values[:, :3]) for keys, values in feed(cache, 3)], 3)


@dataclass
class Followed:
    """A cache, what was written to it and can still count, and where it has to be able to go back to."""

    cache: KvCache
    slack: int
    written: list[int] = field(default_factory=list)  # a mark for each position
    marks: list[int] = field(default_factory=list)
    furthest: int = 0  # from where the slack counts
    n_marks_ever: int = 0

    def feed(self, n_tokens: int, mark: int) -> None:
        position = len(self.cache)
        self.written += [mark] * n_tokens
        for layer, window in enumerate(self.cache.windows):
            everything = np.concatenate([rows(layer, p, 1, mark=m) for p, m in enumerate(self.written)])
            keys, values = self.cache.write(layer, everything[position:], -everything[position:], position)
            first = 0 if window is None else max(0, position - window + 1)
            assert np.array_equal(keys, everything[first:].transpose(1, 0, 2))
            assert np.array_equal(values, -everything[first:].transpose(1, 0, 2))
        self.cache.commit(len(self.written))
        self.furthest = max(self.furthest, len(self.written))

    def mark(self) -> None:
        self.cache.mark()
        if self.written and len(self.written) not in self.marks:
            self.marks.append(len(self.written))
            self.n_marks_ever += 1

    def truncate(self, length: int) -> None:
        expected = max(min(length, len(self.written)), 0)
        foretold = self.cache.reach(length)
        kept = self.cache.truncate(length)
        assert foretold == kept == len(self.cache) <= expected
        if expected >= self.furthest - self.slack or not any(self.cache.windows):
            assert kept == expected
        if kept != expected:  # a checkpoint, from where there is no slack
            marked = [mark for mark in self.marks if mark <= expected]
            assert kept in [0, *marked]
            if marked and self.n_marks_ever <= WINDOW_CHECKPOINTS:
                assert kept == marked[-1]
            self.furthest = kept + self.slack
        del self.written[kept:]
        self.marks = [mark for mark in self.marks if mark <= kept]

    def fork(self, length: int) -> Self:
        kept = self.cache.reach(length)
        other = type(self)(self.cache.fork(length), self.slack, self.written[:kept], furthest=10**9)
        assert len(other.cache) == kept
        other.marks = [mark for mark in self.marks if mark <= kept]
        other.n_marks_ever = 10**9
        return other

    def restored(self) -> Self:
        cache = empty_cache(self.cache.windows, slack=self.slack)
        cache.commit(1)  # a cache in use, of which nothing stays
        cache.truncate(0)
        cache.restore(len(self.cache), {name: array.copy() for name, array in self.cache.export().items()})
        for (name, one), (_, other) in zip(cache.as_floats(), self.cache.as_floats(), strict=True):
            assert np.array_equal(one, other), name
        return type(self)(cache, self.slack, list(self.written), furthest=self.furthest)


OPERATIONS = st.tuples(
    st.sampled_from(["feed", "feed", "feed", "truncate", "back", "mark", "fork", "leave", "restore"]),
    st.integers(1, 40),
)


@pytest.mark.parametrize("step", [1, 8, GROWTH_STEP])
@given(
    windows=st.lists(st.none() | st.integers(1, 12), min_size=1, max_size=3),
    slack=st.integers(0, 12),
    operations=st.lists(OPERATIONS, max_size=25),
)
def test_whatever_is_done_each_token_is_given_what_full_rows_under_a_window_would_show(
    step: int, windows: list[int | None], slack: int, operations: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "GROWTH_STEP", step)
        live = Followed(empty_cache(windows, slack=slack), slack)
        left: list[Followed] = []
        for number, (operation, n) in enumerate(operations):
            if operation == "feed":
                live.feed(n, mark=number * 10**4)
            elif operation == "truncate":
                live.truncate(n)
            elif operation == "back":
                live.truncate(len(live.written) - n % (slack + 2))
            elif operation == "mark":
                live.mark()
            elif operation == "restore":
                live = live.restored()
            else:
                other = live.fork(n)
                live, other = (live, other) if operation == "fork" else (other, live)
                left.append(other)
        for followed in (live, *left):
            followed.feed(1, mark=-1)


@pytest.mark.parametrize("n_tokens", [3, 20, 300])
def test_what_is_exported_is_what_a_window_needs_to_go_on_and_back(n_tokens: int) -> None:  # 20, G9
    cache = empty_cache([WINDOW, None], slack=SLACK)
    feed(cache, n_tokens)
    counts = [array.shape[1] for array in cache.export().values()]
    kept = min(n_tokens, WINDOW + SLACK)
    assert counts == [kept, kept, n_tokens, n_tokens]
    restored = empty_cache([WINDOW, None], slack=SLACK)
    restored.restore(n_tokens, cache.export())
    assert restored.reach(n_tokens - SLACK) == n_tokens - SLACK


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"keys 0": (N_KV_HEADS, 2, HEAD_DIM)}, id="fewer rows than the window needs"),
        pytest.param({"keys 0": (N_KV_HEADS, 5, HEAD_DIM)}, id="keys and values of different lengths"),
        pytest.param({"keys 0": (N_KV_HEADS, 21, HEAD_DIM)}, id="more rows than positions"),
        pytest.param({"values 1": (N_KV_HEADS, 7, HEAD_DIM)}, id="a gap in what sees everything"),
        pytest.param({"keys 0": (N_KV_HEADS, 7)}, id="another shape"),
        pytest.param({"keys 9": (N_KV_HEADS, 7, HEAD_DIM)}, id="a layer too many"),
        pytest.param({"keys 1": None}, id="a layer missing"),
    ],
)
def test_arrays_that_are_not_of_so_many_positions_are_refused_and_leave_nothing(
    damage: dict[str, tuple[int, ...] | None],
) -> None:  # 20
    cache = empty_cache([WINDOW, None], slack=SLACK)
    feed(cache, 20)
    arrays = dict(cache.export())
    for name, shape in damage.items():
        if shape is None:
            del arrays[name]
        else:
            arrays[name] = np.zeros(shape, np.float32)
    with pytest.raises(ValueError, match=r"`(keys|values) \d`"):
        cache.restore(20, arrays)
    assert len(cache) == 0
    check_contents(feed(cache, 2), 2)
