"""What caches of both kinds hold as they grow, drop what no window sees, are cut, forked and restored, and fail."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.cache_harness import ALL, MIXED, SLACK, WINDOW, Fed, FedFloats, FedPacked, ScarceNumpy, Windows
from turbospark_chat.models import layer_rows, retention
from turbospark_chat.models.layer_cache import LayerCache
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.retention import GROWTH_STEP, WINDOW_CHECKPOINTS, count_rows

KINDS: list[type[Fed]] = [FedFloats, FedPacked]
WINDOWS = pytest.mark.parametrize("windows", [ALL, MIXED], ids=["all", "mixed"])
Kind = type[Fed]
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    each: Kind = request.param
    return each


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows move as often as they can."""
    monkeypatch.setattr(retention, "GROWTH_STEP", 1)


def lengths_within_reach(fed: Fed) -> list[int]:
    return [length for length in range(len(fed.ids) + 1) if fed.cache.reach(length) == length]


@WINDOWS
def test_a_new_cache_is_empty_and_takes_no_memory(kind: Kind, windows: Windows) -> None:
    cache = kind(windows).cache
    assert (len(cache), cache.n_bytes, cache.n_moves) == (0, 0, 0)


def test_capacity_grows_in_steps_by_half_and_is_never_the_length(kind: Kind) -> None:  # A17
    fed, capacities = kind([None]), []
    for length in range(1, 1100):
        fed.feed(1)
        assert len(fed.cache) == length
        capacities.append(fed.cache.n_bytes / fed.row_bytes)
    assert sorted(set(capacities)) == [256, 512, 768, 1280]  # so copying stays linear
    assert fed.cache.n_moves == 4


@pytest.mark.parametrize("length", [255, 256, 257, 280])
def test_a_prefix_around_a_step_is_kept_whole(kind: Kind, length: int) -> None:  # A17
    fed = kind()
    fed.feed(400)
    assert fed.truncate(length) == length
    fed.check()
    fed.feed(20, id_=5)
    fed.check()


@pytest.mark.parametrize(("asked", "kept"), [(99, 10), (10, 10), (3, 3), (0, 0), (-5, 0)])
@WINDOWS
def test_a_cut_returns_how_many_are_left(kind: Kind, windows: Windows, asked: int, kept: int) -> None:
    fed = kind(windows)
    fed.feed(10)
    assert fed.truncate(asked) == kept


def test_what_is_written_counts_only_once_committed(kind: Kind) -> None:
    fed = kind()
    fed.feed(5)
    fed.write([*fed.ids, 9, 9, 9])  # by a pass that goes no further
    fed.check()
    fed.feed(2)
    fed.check()


def test_without_a_window_it_goes_back_anywhere_and_a_mark_copies_nothing(kind: Kind) -> None:
    fed = kind()
    fed.feed(1000)
    n_bytes = fed.cache.n_bytes
    fed.mark()
    assert (fed.cache.slack, fed.cache.n_bytes) == (sys.maxsize, n_bytes)
    assert [fed.cache.reach(length) for length in (-3, 0, 1, 999, 1000, 2000)] == [0, 0, 1, 999, 1000, 1000]


# --- windows ---


def test_a_window_takes_as_much_memory_for_many_positions_as_for_some(kind: Kind) -> None:
    fed, sizes = kind([WINDOW]), []
    for _ in range(60):
        fed.feed(50)
        sizes.append(fed.cache.n_bytes)
        fed.check()
    assert len(set(sizes[10:])) == 1
    assert sizes[-1] <= (WINDOW + SLACK + 2 * GROWTH_STEP) * fed.row_bytes


def test_a_window_is_moved_once_a_step_and_not_at_every_token(kind: Kind) -> None:
    fed = kind([7], slack=0)
    fed.feed(2 * GROWTH_STEP)
    n_moves = fed.cache.n_moves
    fed.feed(2 * GROWTH_STEP, at_once=1)
    assert 1 <= fed.cache.n_moves - n_moves <= 3


def test_what_one_long_pass_made_room_for_is_given_back(kind: Kind) -> None:
    fed = kind([WINDOW])
    fed.feed(5000)
    while_long = fed.cache.n_bytes
    fed.feed(500)
    assert fed.cache.n_bytes < while_long / 4
    fed.check()


@pytest.mark.parametrize("slack", [0, 1, 5, SLACK, 700])
@pytest.mark.parametrize("length", [1, 7, 39, 40, 41, 255, 256, 257, 300, 511, 1000])
def test_it_goes_back_by_its_slack_from_anywhere(kind: Kind, length: int, slack: int) -> None:
    fed = kind(MIXED, slack=slack)
    fed.feed(length, at_once=10)
    assert fed.cache.slack == slack
    n_kept = max(length - slack, 0)
    assert fed.truncate(n_kept) == n_kept
    fed.check()
    fed.feed(20, id_=5)
    fed.check()


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
def test_a_cut_further_than_a_window_holds_goes_to_0_and_never_to_a_wrong_state(
    kind: Kind, windows: Windows, slack: int, kept: int
) -> None:
    fed = kind(windows, slack=slack)
    fed.feed(12, at_once=1)
    assert fed.truncate(9) == kept
    fed.check()
    fed.feed(4, id_=3)
    fed.check()


@pytest.mark.usefixtures("small_steps")
def test_the_last_position_can_be_fed_again_even_without_slack(kind: Kind) -> None:  # A8
    fed = kind([4], slack=0)
    fed.feed(12, at_once=1)
    assert fed.truncate(11) == 11


@pytest.mark.usefixtures("small_steps")
def test_a_cut_to_0_after_rows_were_dropped_leaves_nothing_behind(kind: Kind) -> None:  # A13
    fed = kind([4, None], slack=0)
    fed.feed(20, id_=9, at_once=1)
    assert fed.truncate(1) == 0
    assert fed.truncate(5) == 0
    fed.feed(1)
    assert fed.truncate(1) == 1
    fed.feed(2)
    fed.check()


@pytest.mark.usefixtures("small_steps")
def test_beyond_the_slack_it_goes_back_to_the_newest_mark_as_often_as_asked(kind: Kind) -> None:  # 6, A11
    fed = kind([4, None], slack=3)
    for length in (6, 20, 60):
        fed.feed(length - len(fed.ids), at_once=1)
        fed.mark()
    fed.feed(30, at_once=1)
    for id_ in (2, 3):
        assert fed.truncate(59) == 20  # and not to 60, which is past it
        assert lengths_within_reach(fed) == [0, 6, 20]
        fed.check()
        fed.feed(70, id_=id_, at_once=1)
    assert fed.truncate(19) == 6
    assert fed.truncate(5) == 0  # a mark holds what goes on from it, and nothing to go back on


@pytest.mark.usefixtures("small_steps")
def test_a_mark_on_a_branch_that_was_given_up_is_never_gone_back_to(kind: Kind) -> None:  # 6
    fed = kind([4, None], slack=3)
    fed.feed(10, id_=9)
    fed.mark()
    assert fed.truncate(8) == 8
    fed.feed(30, at_once=1)
    assert fed.cache.reach(12) == 0


@pytest.mark.usefixtures("small_steps")
def test_no_more_marks_are_kept_than_are_counted(kind: Kind) -> None:  # G7
    fed = kind([4, None], slack=3)
    for _ in range(50):
        fed.feed(10)
        fed.mark()
    assert [length for length in lengths_within_reach(fed) if 0 < length < 490][0] == 10
    assert fed.cache.n_bytes <= fed.row_bytes * count_rows([4, None], 750, slack=3)
    fed.truncate(0)
    assert lengths_within_reach(fed) == [0]


def test_the_bytes_of_checkpoints_are_counted(kind: Kind) -> None:
    marked, unmarked = kind(MIXED), kind(MIXED)
    for _ in range(20):
        for fed in (marked, unmarked):
            fed.feed(50)
        marked.mark()
        marked.mark()
    n_rows = sum(WINDOW_CHECKPOINTS * (window - 1) for window in MIXED if window is not None)
    assert marked.cache.n_bytes == unmarked.cache.n_bytes + n_rows * marked.row_bytes


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=30)
@given(n_old=st.integers(0, 600), n_new=st.integers(1, 60))
def test_two_of_one_length_show_the_same_however_much_old_they_keep(
    kind: Kind, n_old: int, n_new: int
) -> None:
    in_one, by_and_by = kind(MIXED, slack=500), kind(MIXED, slack=0)
    in_one.feed(n_old + n_new)
    by_and_by.feed(n_old)
    by_and_by.feed(n_new, at_once=1)
    pairs = zip(in_one.cache.as_floats(), by_and_by.cache.as_floats(), strict=True)
    for (name, one), (other_name, other) in pairs:
        assert name == other_name
        assert np.array_equal(one, other)


# --- every way, in any order ---


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["feed", "feed", "feed", "truncate", "back", "mark", "fork", "leave", "restore", "fail"]
        ),
        st.integers(1, 40) | st.integers(1, 400),
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("growth_step", [1, 8, GROWTH_STEP])
@settings(deadline=None)
@given(
    windows=st.lists(st.none() | st.integers(1, 12) | st.just(WINDOW), min_size=1, max_size=3),
    slack=st.integers(0, 12) | st.sampled_from([60, 500]),
    steps=STEPS,
)
def test_it_holds_what_its_ids_say_whatever_is_done(
    kind: Kind, growth_step: int, windows: Windows, slack: int, steps: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "GROWTH_STEP", growth_step)
        fed = kind(windows, slack=slack)
        left: list[Fed] = []
        for number, (step, n) in enumerate(steps, start=1):
            match step:
                case "feed":
                    fed.feed(n, id_=number)
                case "truncate":
                    fed.truncate(n)
                case "back":
                    fed.truncate(len(fed.ids) - n % (slack + 2))
                case "mark":
                    fed.mark()
                case "restore":
                    fed = fed.restored(n_before=n)
                case "fail":
                    fed.write([*fed.ids, *[number] * n])
                case "fork":
                    left.append(fed.fork(n))
                case "leave":
                    left.append(fed)
                    fed = fed.fork(n)
            fed.check()
        for each in (fed, *left):
            each.check()
            each.feed(1)
            each.check()


@WINDOWS
def test_a_fork_and_its_origin_do_not_change_with_each_other(kind: Kind, windows: Windows) -> None:
    fed = kind(windows)
    fed.feed(400)
    fed.mark()
    fed.feed(600, id_=2, at_once=10)  # after which the windows hold 400 in their checkpoint alone
    forks = [fed.fork(length) for length in (400, 400, 990)]
    for number, fork in enumerate(forks, start=3):
        fork.truncate(len(fork.ids) - 5)
        fork.feed(60, id_=number)
    for each in (fed, *forks):
        each.check()
    assert fed.truncate(400) == 400
    fed.check()


# --- restoring ---


@WINDOWS
@pytest.mark.parametrize("length", [0, 1, 30, 39, 40, 300, 1000])
def test_what_is_exported_is_enough_to_go_on_and_back(kind: Kind, windows: Windows, length: int) -> None:
    fed = kind(windows)
    fed.feed(length, at_once=30)
    other = fed.restored()  # case 20
    other.check()
    n_back = max(length - SLACK, 0)
    assert other.truncate(n_back) == n_back
    other.feed(700, id_=2)
    other.check()


@pytest.mark.parametrize("n_tokens", [3, 20, 300])
def test_no_more_is_exported_than_a_window_and_its_slack_need(kind: Kind, n_tokens: int) -> None:  # G9
    fed = kind([4, None], slack=3)
    fed.feed(n_tokens)
    counts = [array.shape[1] for array in fed.cache.export().values()]
    n_parts = len(fed.parts)
    assert counts == [min(n_tokens, 4 + 3)] * n_parts + [n_tokens] * n_parts


def of_layer(layer: int, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {
        name: change(array) if name.endswith(f" {layer}") else array for name, array in arrays.items()
    }


def changed(nth: int, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {list(arrays)[nth]: change(list(arrays.values())[nth])}


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda arrays: {}, id="nothing"),
        pytest.param(lambda arrays: dict(list(arrays.items())[:-1]), id="one missing"),
        pytest.param(lambda arrays: arrays | {"more": np.zeros(3)}, id="one more"),
        pytest.param(lambda arrays: arrays | {"keys 9": arrays["keys 1"]}, id="a layer more"),
        pytest.param(changed(1, lambda array: array.astype(np.float64)), id="of another type"),
        pytest.param(of_layer(1, lambda array: array[:1]), id="of one head"),
        pytest.param(changed(0, lambda array: array[0, 0]), id="keys of one axis"),
        pytest.param(changed(0, lambda array: array[:, 1:]), id="fewer keys than values"),
        pytest.param(changed(1, lambda array: array[:, 1:]), id="fewer values than keys"),
        pytest.param(changed(-1, lambda array: array[:, 1:]), id="fewer of the last part"),
        pytest.param(of_layer(0, lambda array: array[:, 32:]), id="fewer rows than the window needs"),
        pytest.param(of_layer(1, lambda array: array[:, 1:]), id="a gap in what sees everything"),
        pytest.param(of_layer(1, lambda array: np.repeat(array, 2, axis=1)), id="more rows than positions"),
    ],
)
def test_arrays_of_another_state_are_refused_and_leave_it_empty(
    kind: Kind, spoil: Callable[[Arrays], Arrays]
) -> None:  # 20
    other = kind(MIXED)
    other.feed(70)
    fed = kind(MIXED)
    fed.feed(600, at_once=10)
    fed.mark()
    with pytest.raises(ValueError, match=r"`.+` is .*(, expected|not part of)"):
        fed.cache.restore(70, spoil(dict(other.cache.export())))
    assert fed.cache.reach(600) == 0
    fed.ids.clear()
    fed.check()
    fed.feed(300)
    fed.check()


# --- failing ---


ARRAYS_OF_ALL_LAYERS = [(kind, n) for kind in KINDS for n in range(len(ALL) * len(kind.parts))]
ARRAYS_OF_BOTH_WINDOWS = [(kind, n) for kind in KINDS for n in range(2 * len(kind.parts))]


@WINDOWS
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(("kind", "n_arrays"), ARRAYS_OF_ALL_LAYERS)
def test_a_failure_to_grow_loses_no_position_and_counts_each_move(
    kind: Kind, n_arrays: int, error: type[BaseException], windows: Windows
) -> None:
    fed = kind(windows)
    fed.feed(GROWTH_STEP)
    n_moves = fed.cache.n_moves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_rows, "np", ScarceNumpy(n_arrays, error))
        with pytest.raises(error):
            fed.feed(1, id_=9)
    assert fed.cache.n_moves - n_moves == n_arrays // len(fed.parts)
    fed.check()
    assert fed.cache.reach(GROWTH_STEP - SLACK) == GROWTH_STEP - SLACK
    fed.feed(1)
    fed.check()


def fed_past_a_mark(kind: Kind) -> Fed:
    fed = kind(MIXED)
    fed.feed(300)
    fed.mark()
    fed.feed(500, at_once=10)
    return fed


@pytest.mark.parametrize(("kind", "n_arrays"), ARRAYS_OF_BOTH_WINDOWS)
def test_a_failure_to_go_back_changes_nothing(kind: Kind, n_arrays: int) -> None:
    fed = fed_past_a_mark(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_rows, "np", ScarceNumpy(n_arrays, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fed.cache.truncate(300)
    fed.check()
    assert fed.truncate(300) == 300
    fed.check()


def test_going_back_to_nothing_takes_no_memory(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = fed_past_a_mark(kind)
    monkeypatch.setattr(layer_rows, "np", ScarceNumpy(0))
    assert fed.truncate(0) == 0


@pytest.mark.parametrize("goal", [0, 300])
@pytest.mark.parametrize("has_layers", [False, True], ids=["before", "after"])
def test_an_interrupt_as_the_layers_take_their_places_is_mended_by_the_same_cut(
    kind: Kind, has_layers: bool, goal: int
) -> None:
    fed = fed_past_a_mark(kind)

    def interrupted(cache: LayerCache[Any], name: str, value: object) -> None:
        if name != "_layers" or has_layers:
            object.__setattr__(cache, name, value)
        if name == "_layers":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerCache, "__setattr__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fed.cache.truncate(goal)
    assert fed.cache.reach(goal + 100) == goal
    if isinstance(fed.cache, PackedKvCache):
        assert (
            goal in fed.cache.room or fed.cache.room.stop == goal
        ) == has_layers  # else no program runs on it
    assert fed.truncate(goal) == goal
    fed.check()
    fed.feed(100, id_=8)
    fed.check()
