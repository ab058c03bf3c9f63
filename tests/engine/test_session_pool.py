"""The pool against a list model, and conversations that share one model through it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.session_pool import Parked, SessionPool
from turbospark_chat.errors import SettingError


def record(ids: Sequence[int]) -> KvPrefix:
    prefix = KvPrefix()
    prefix.record(ids, 0)
    return prefix


def parked_pool(capacity: int, *conversations: Sequence[int]) -> tuple[SessionPool[object], list[object]]:
    """Return a pool holding the conversations, the first the least recently used, and their states."""
    pool: SessionPool[object] = SessionPool(capacity)
    states = [object() for _ in conversations]
    for ids, state in zip(conversations, states, strict=True):
        assert pool.park(record(ids), state) is None
    return pool, states


def test_an_empty_pool_matches_nothing():
    pool: SessionPool[object] = SessionPool(3)
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
    pool: SessionPool[list[int]] = SessionPool(1)
    prefix, state = record([1, 2]), [1, 2]
    pool.park(prefix, state)
    taken = pool.take([1, 2, 3])
    assert taken.prefix is prefix
    assert taken.state is state
    assert len(pool) == 0


def test_equal_matches_go_to_the_most_recently_used():
    pool, states = parked_pool(3, [1, 2, 7], [1, 2, 8], [5])
    assert pool.take([1, 2, 3]).state is states[1]


def test_a_full_pool_evicts_the_least_recently_used():
    pool, states = parked_pool(2, [1, 1], [2, 2])
    again = pool.take([1, 1, 5])  # serving it makes it the most recently used when it is parked again
    assert pool.park(again.prefix, again.state) is None
    evicted = pool.park(record([3, 3]), object())
    assert evicted.state is states[1]
    assert [pool.best_match([id_, id_, 0]) for id_ in (1, 2, 3)] == [2, 0, 2]


def test_looking_does_not_count_as_use():
    pool, states = parked_pool(2, [1, 1], [2, 2])
    pool.best_match([1, 1, 5])
    assert pool.park(record([3]), object()).state is states[0]


def test_a_swap_in_a_full_pool_evicts_nothing():
    pool, states = parked_pool(1, [1, 1])
    live_prefix, live_state = record([2, 2]), object()
    assert pool.take([1, 1, 5]).state is states[0]
    assert pool.park(live_prefix, live_state) is None
    assert pool.take([2, 2, 5]).state is live_state


def test_capacity_0_evicts_what_is_parked():
    pool: SessionPool[object] = SessionPool(0)
    prefix, state = record([1]), object()
    assert pool.park(prefix, state) == Parked(prefix, state)
    assert len(pool) == 0


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
    assert pool.park(prefix, object()) is None
    assert len(pool) == capacity
    assert pool.best_match([1, 2, 3, 4]) == (3 if capacity else 0)


def test_a_state_cannot_be_parked_twice():
    pool: SessionPool[object] = SessionPool(3)
    prefix, state = record([1]), object()
    pool.park(prefix, state)
    with pytest.raises(ValueError, match="parked already"):
        pool.park(record([1]), state)
    with pytest.raises(ValueError, match="parked already"):
        pool.park(prefix, object())
    assert len(pool) == 1


def test_a_negative_capacity_is_refused():
    with pytest.raises(SettingError, match="-1"):
        SessionPool(-1)


# The list model

ids = st.lists(st.integers(1, 3), max_size=4)
operations = st.lists(st.tuples(st.sampled_from(["park", "take", "match"]), ids), max_size=40)


def shared(record_ids: Sequence[int], prompt_ids: Sequence[int]) -> int:
    """Return the longest n with equal first n ids that leaves one prompt id to feed."""
    lengths = range(min(len(record_ids), len(prompt_ids) - 1), 0, -1)
    return next((n for n in lengths if record_ids[:n] == prompt_ids[:n]), 0)


@given(st.integers(0, 3), operations)
def test_the_pool_is_a_list_in_order_of_use(capacity, steps):
    pool: SessionPool[object] = SessionPool(capacity)
    model: list[tuple[list[int], object]] = []  # least recently used first
    for step, step_ids in steps:
        if step == "park":
            state = object()
            evicted = pool.park(record(step_ids), state)
            if step_ids:
                model.append((step_ids, state))
            expected = model.pop(0)[1] if len(model) > capacity else None
            assert (evicted and evicted.state) is expected
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
        assert len(pool) == len(model) <= capacity
    # Nothing was lost or doubled but what was taken or reported: drain the pool, the longest records first.
    longest_first = sorted((known for known, _ in model), key=len, reverse=True)
    drained = {pool.take([*known, 0]).state for known in longest_first}
    assert drained == {state for _, state in model}
    assert len(pool) == 0


# Conversations over one model


class PooledHashLM:
    """HashLM of the case files with a pool: what a producer does with it, without the arithmetic."""

    def __init__(self, capacity: int) -> None:
        self._pool: SessionPool[list[tuple[int, int]]] = SessionPool(capacity)
        self._prefix = KvPrefix()
        self._cache: list[tuple[int, int]] = []
        self.n_evaluated = 0
        self.session_slot_evicted = False

    def reply(self, prompt_ids: Sequence[int], n_tokens: int) -> list[int]:
        self._serve(prompt_ids)
        for id_ in prompt_ids[len(self._cache) :]:
            self._feed(id_)
        reply = []
        for _ in range(n_tokens):
            reply.append(sum((p + 1) * (id_ + 7) for p, id_ in self._cache) % 97)
            self._feed(reply[-1])
        return reply

    def _serve(self, prompt_ids: Sequence[int]) -> None:
        self.session_slot_evicted = False
        live_match = self._prefix.common_prefix(prompt_ids)
        if self._pool.best_match(prompt_ids) > live_match:
            parked = self._pool.take(prompt_ids)
        elif live_match == 0:
            parked = Parked(KvPrefix(), [])
        else:
            parked = None
        if parked is not None:
            self.session_slot_evicted = self._pool.park(self._prefix, self._cache) is not None
            self._prefix, self._cache = parked.prefix, parked.state
        self._prefix.rewind_to(self._prefix.common_prefix(prompt_ids))
        del self._cache[len(self._prefix) :]

    def _feed(self, id_: int) -> None:
        self._cache.append((len(self._cache), id_))
        self._prefix.record([id_], len(self._prefix))
        self.n_evaluated += 1


def cold(prompt_ids: Sequence[int], n_tokens: int) -> list[int]:
    return PooledHashLM(0).reply(prompt_ids, n_tokens)


@pytest.mark.parametrize("capacity", [0, 1, 2])
def test_conversations_in_turn_answer_as_cold_runs(capacity):  # A15
    model = PooledHashLM(capacity)
    first, second = list(range(10, 30)), [3, 4]
    assert model.reply(first, 4) == cold(first, 4)
    assert not model.session_slot_evicted
    assert model.reply(second, 4) == cold(second, 4)
    assert model.session_slot_evicted == (capacity == 0)
    evaluated_before = model.n_evaluated
    assert model.reply(first, 4) == cold(first, 4)
    assert model.session_slot_evicted == (capacity == 0)
    # From the slot, one prompt token is evaluated again; without one, all twenty.
    assert model.n_evaluated - evaluated_before == (1 if capacity else 20) + 4


def test_a_third_conversation_evicts_the_oldest_and_says_so():
    model = PooledHashLM(1)
    conversations = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    evicted = []
    for ids_ in [*conversations, conversations[1], conversations[0]]:
        assert model.reply(ids_, 3) == cold(ids_, 3)
        evicted.append(model.session_slot_evicted)
    assert evicted == [False, False, True, False, True]


def test_a_parked_state_keeps_its_length_and_serves_twice():  # A11
    model = PooledHashLM(2)
    checkpoint, other = [5, 11, 23, 42], [60, 61]
    model.reply(checkpoint, 0)
    kept = model._cache
    model.reply(other, 20)
    assert kept == [(0, 5), (1, 11), (2, 23), (3, 42)]
    assert kept is not model._cache
    prompt = [*checkpoint, 70]
    first = model.reply(prompt, 20)
    model.reply(other, 20)
    assert model.reply(prompt, 20) == first == cold(prompt, 20)


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 3)), max_size=12),
)
def test_any_order_of_prompts_answers_as_cold_runs(capacity, turns):
    model = PooledHashLM(capacity)
    for prompt_ids, n_tokens in turns:
        assert model.reply(prompt_ids, n_tokens) == cold(prompt_ids, n_tokens)
