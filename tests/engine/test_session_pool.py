"""What the pool keeps, gives back and throws away; then all of it against a list.

Conversations that share one model through it are in the runner's tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.session_pool import Parked, SessionPool
from turbospark_chat.errors import SettingError


@dataclass(eq=False)
class Whole:
    """A state that goes back anywhere, or, where `is_stuck`, nowhere."""

    n_bytes: int = 1
    is_stuck: bool = False
    length: int = 0  # of the stuck one

    def reach(self, length: int) -> int:
        return length if not self.is_stuck or length >= self.length else 0


Pool = SessionPool[Whole]


def record(ids: Sequence[int]) -> KvPrefix:
    prefix = KvPrefix()
    prefix.record(ids, 0)
    return prefix


def stuck(ids: Sequence[int]) -> tuple[KvPrefix, Whole]:
    return record(ids), Whole(is_stuck=True, length=len(ids))


def parked_pool(capacity: int, *conversations: Sequence[int]) -> tuple[Pool, list[Whole]]:
    """Return a pool holding the conversations, the first the least recently used, and their states."""
    pool = Pool(capacity)
    states = [Whole() for _ in conversations]
    for ids, state in zip(conversations, states, strict=True):
        assert not pool.park(record(ids), state)
    return pool, states


def thrown_away(pool: Pool, ids: Sequence[int], state: Whole) -> list[Whole]:
    return [parked.state for parked in pool.park(record(ids), state)]


def test_an_empty_pool_matches_nothing():
    pool = Pool(3)
    assert len(pool) == 0
    assert pool.best_match([1, 2]) == 0
    assert pool.take([1, 2]) is None


def test_the_longest_common_prefix_wins():
    pool, states = parked_pool(3, [1, 2, 9], [1, 2, 3, 4], [1])
    assert pool.best_match([1, 2, 3, 7]) == 3
    assert pool.take([1, 2, 3, 7]).state is states[1]
    assert len(pool) == 2
    assert pool.best_match([1, 2, 3, 7]) == 2


def test_one_id_is_left_to_feed():
    pool, _ = parked_pool(1, [1, 2, 3])
    assert pool.best_match([1, 2, 3]) == 2
    assert pool.best_match([1]) == 0
    assert pool.best_match([]) == 0
    assert pool.take([1]) is None
    assert len(pool) == 1


def test_taking_a_prompt_that_shares_nothing_removes_nothing():
    pool, _ = parked_pool(2, [1, 2], [3, 4])
    assert pool.take([5, 6]) is None
    assert len(pool) == 2


def test_references_move_and_nothing_is_copied():
    pool = Pool(1)
    prefix, state = record([1, 2]), Whole()
    pool.park(prefix, state)
    taken = pool.take([1, 2, 3])
    assert taken.prefix is prefix
    assert taken.state is state
    assert len(pool) == 0


def test_equal_matches_go_to_the_most_recently_used():
    pool, states = parked_pool(3, [1, 2, 7], [1, 2, 8], [5])
    assert pool.take([1, 2, 3]).state is states[1]


def test_a_state_serves_no_more_than_it_can_go_back_to():
    pool, states = parked_pool(3, [1, 2])
    pool.park(*stuck([1, 2, 3, 4]))
    prompt = [1, 2, 3, 7]
    assert pool.best_match(prompt) == 2
    assert pool.take(prompt).state is states[0]
    assert pool.best_match(prompt) == 0
    assert pool.take(prompt) is None
    assert pool.take([1, 2, 3, 4, 7]).prefix.ids == (1, 2, 3, 4)


def test_a_full_pool_evicts_the_least_recently_used():
    pool, states = parked_pool(2, [1, 1], [2, 2])
    again = pool.take([1, 1, 5])  # serving it makes it the most recently used when it is parked again
    assert not pool.park(again.prefix, again.state)
    assert thrown_away(pool, [3, 3], Whole()) == [states[1]]
    assert [pool.best_match([id_, id_, 0]) for id_ in (1, 2, 3)] == [2, 0, 2]


def test_looking_does_not_count_as_use():
    pool, states = parked_pool(2, [1, 1], [2, 2])
    pool.best_match([1, 1, 5])
    assert thrown_away(pool, [3], Whole()) == [states[0]]


def test_a_swap_in_a_full_pool_evicts_nothing():
    pool, states = parked_pool(1, [1, 1])
    live_prefix, live_state = record([2, 2]), Whole()
    assert pool.take([1, 1, 5]).state is states[0]
    assert not pool.park(live_prefix, live_state)
    assert pool.take([2, 2, 5]).state is live_state


def test_capacity_0_evicts_what_is_parked():
    pool = Pool(0)
    prefix, state = record([1]), Whole()
    assert pool.park(prefix, state) == [Parked(prefix, state)]
    assert len(pool) == 0


# Bytes


def test_as_many_states_stay_as_fit_the_bytes():
    pool = Pool(9, budget=lambda: 10)
    first, second, third, fourth = (Whole(n_bytes) for n_bytes in (4, 3, 3, 6))
    assert [thrown_away(pool, [i], state) for i, state in enumerate([first, second, third])] == [[], [], []]
    assert pool.n_bytes == 10
    assert thrown_away(pool, [3], fourth) == [first, second]  # the oldest first, and no more than it takes
    assert (len(pool), pool.n_bytes) == (2, 9)


def test_a_state_larger_than_the_bytes_is_thrown_away_and_the_others_stay():
    pool = Pool(2, budget=lambda: 10)
    small, large = Whole(10), Whole(11)
    assert not thrown_away(pool, [1], small)
    assert thrown_away(pool, [2], large) == [large]
    assert (len(pool), pool.n_bytes) == (1, 10)


@pytest.mark.parametrize("left", [0, -5], ids=["nothing left", "less than nothing left"])
@pytest.mark.parametrize(("parks", "n_stay"), [(Whole(2), 2), (Whole(5), 2)], ids=["that fits", "too large"])
def test_a_budget_is_asked_at_every_park_and_may_shrink(left, parks, n_stay):
    budget = 10
    pool = Pool(9, budget=lambda: budget)
    states = [Whole(2) for _ in range(4)]
    for i, state in enumerate(states):
        assert not thrown_away(pool, [i], state)
    budget = 4
    fits = parks.n_bytes <= budget
    expected = states[:3] if fits else [*states[:2], parks]
    assert thrown_away(pool, [7], parks) == expected
    assert len(pool) == n_stay
    budget = left
    last = Whole(1)
    assert thrown_away(pool, [8], last) == [*([states[3], parks] if fits else states[2:]), last]
    assert (len(pool), pool.n_bytes) == (0, 0)


def test_a_budget_that_cannot_be_told_leaves_the_pool_as_it_was():
    def budget() -> int:
        raise OSError("no such counter")

    pool = Pool(2, budget=budget)
    state = Whole()
    with pytest.raises(OSError, match="no such counter"):
        pool.park(record([1]), state)
    assert (len(pool), pool.best_match([1, 2])) == (0, 0)


def test_fifty_conversations_never_hold_more_than_three_states():  # G7
    pool, most = Pool(99, budget=lambda: 30), 0
    states = [Whole(10) for _ in range(50)]
    evicted = []
    for i, state in enumerate(states):
        evicted += thrown_away(pool, [i, i], state)
        most = max(most, len(pool))
    assert most == 3
    assert evicted == states[:47]


def test_the_one_that_waits_longest_can_be_thrown_away_by_hand():
    pool, states = parked_pool(2, [1, 1], [2, 2])
    assert pool.evict().state is states[0]
    assert pool.evict().state is states[1]
    assert pool.evict() is None
    assert (len(pool), pool.n_bytes) == (0, 0)


# What cannot be parked


def tainted(ids: Sequence[int]) -> KvPrefix:
    prefix = record(ids)
    prefix.taint()
    return prefix


@pytest.mark.parametrize(
    "prefix", [record([]), tainted([1, 2]), tainted([])], ids=["empty", "tainted", "both"]
)
@pytest.mark.parametrize("capacity", [0, 1])
def test_an_unusable_state_is_not_kept_and_evicts_nothing(prefix, capacity):
    pool, _ = parked_pool(capacity, *[[1, 2, 3]][:capacity])
    assert not pool.park(prefix, Whole())
    assert len(pool) == capacity
    assert pool.best_match([1, 2, 3, 4]) == (3 if capacity else 0)


def test_a_state_cannot_be_parked_twice():
    pool = Pool(3)
    prefix, state = record([1]), Whole()
    pool.park(prefix, state)
    with pytest.raises(ValueError, match="parked already"):
        pool.park(record([1]), state)
    with pytest.raises(ValueError, match="parked already"):
        pool.park(prefix, Whole())
    assert len(pool) == 1


def test_a_negative_capacity_is_refused():
    with pytest.raises(SettingError, match="-1"):
        SessionPool(-1)


# The list model

ids = st.lists(st.integers(1, 3), max_size=4)
operations = st.lists(
    st.tuples(st.sampled_from(["park", "take", "match", "evict"]), ids, st.integers(1, 4)), max_size=40
)


def shared(record_ids: Sequence[int], prompt_ids: Sequence[int]) -> int:
    """Return the longest n with equal first n ids that leaves one prompt id to feed."""
    lengths = range(min(len(record_ids), len(prompt_ids) - 1), 0, -1)
    return next((n for n in lengths if record_ids[:n] == prompt_ids[:n]), 0)


@given(st.integers(0, 3), st.none() | st.integers(-1, 8), operations)
def test_the_pool_is_a_list_in_order_of_use(capacity, budget, steps):
    pool = Pool(capacity, budget=None if budget is None else lambda: budget)
    model: list[tuple[list[int], Whole]] = []  # least recently used first

    def is_over() -> bool:
        n_bytes = sum(state.n_bytes for _, state in model)
        return len(model) > capacity or (budget is not None and n_bytes > max(budget, 0))

    for step, step_ids, size in steps:
        if step == "park":
            state, expected = Whole(size), []
            evicted = thrown_away(pool, step_ids, state)
            if step_ids and (capacity == 0 or (budget is not None and size > budget)):
                expected = [state]
            elif step_ids:
                model.append((step_ids, state))
            while is_over():
                expected.append(model.pop(0)[1])
            assert evicted == expected
        elif step == "evict":
            thrown = pool.evict()
            assert (thrown and thrown.state) is (model.pop(0)[1] if model else None)
        else:
            longest = max((shared(known, step_ids) for known, _ in model), default=0)
            assert pool.best_match(step_ids) == longest
            if step == "take":
                candidates = [entry for entry in model if longest and shared(entry[0], step_ids) == longest]
                taken = pool.take(step_ids)
                assert (taken and taken.state) is (candidates[-1][1] if candidates else None)
                if candidates:
                    model.remove(candidates[-1])
                    assert list(taken.prefix.ids) == candidates[-1][0]
        assert len(pool) == len(model)
        assert pool.n_bytes == sum(state.n_bytes for _, state in model)
    # Nothing was lost or doubled but what was taken or reported: drain the pool, the longest records first.
    longest_first = sorted((known for known, _ in model), key=len, reverse=True)
    drained = {pool.take([*known, 0]).state for known in longest_first}
    assert drained == {state for _, state in model}
    assert len(pool) == 0
