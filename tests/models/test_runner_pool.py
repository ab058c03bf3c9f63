"""Several conversations through one runner: which state serves a prompt, which wait, and what is thrown away."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from checked_engine import as_the_next_token_sees, built_from
from fakes import HashModel, HashState, RecurrentModel
from fed_runner import AnyRunner, MakeModel, check_agreement, continued, feed, reply, run
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix, common_length
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.models.runner import Runner

Held = tuple[tuple[int, ...], Any]  # the ids of a state, and the state


class OpenPool(SessionPool[Any]):
    """A pool that can be looked into."""

    @property
    def parked(self) -> list[Held]:
        """The states that wait and their ids, the least recently used first."""
        return [(parked.prefix.ids, parked.state) for parked in self._slots]


def pooled(model: Any, *, slots: int = 1, n_bytes: int | None = None) -> tuple[AnyRunner, OpenPool]:
    pool = OpenPool(slots, budget=None if n_bytes is None else lambda: n_bytes)
    return Runner(model, KvPrefix, pool=pool), pool


def cold(prompt_ids: Sequence[int], make_model: MakeModel = HashModel, *, n_new: int = 3) -> list[int]:
    return reply(run(make_model()), prompt_ids, n_new)


def check_states(runner: AnyRunner, pool: OpenPool, make_model: MakeModel) -> None:
    """Every state, live or parked, is what its record's ids make of an empty one, and each has one owner."""
    check_agreement(runner, len(runner.record))
    held = [*pool.parked, (runner.record.ids, runner.state)]
    for ids, state in held:
        expected = built_from(ids, make_model().make_state())
        assert as_the_next_token_sees(state) == as_the_next_token_sees(expected)
    assert len({id(state) for _, state in held}) == len(held)


FIRST = list(range(40, 60))
SECOND = [3, 4]


# --- which state serves a prompt ---


@pytest.mark.parametrize(
    ("held", "is_return_expected", "prompt_ids", "kept", "parked"),
    [
        pytest.param([1, 2, 3], False, [1, 2, 3, 4], 3, [], id="continued in place"),
        pytest.param([1, 2, 3], True, [1, 2, 3, 4], 3, [], id="continued in place though expected back"),
        pytest.param([1, 2, 3, 9], False, [1, 2, 3, 4], 3, [], id="cut in place"),
        pytest.param(
            [1, 2, 3, 9], True, [1, 2, 3, 4], 3, [(1, 2, 3, 9)], id="expected back, so parked whole"
        ),
        pytest.param([1, 2, 3], False, [4, 5], 0, [(1, 2, 3)], id="nothing shared, so parked whole"),
        pytest.param([1, 2, 3], False, [1, 2, 3], 2, [], id="the very same"),
        pytest.param([1, 2, 3], False, [1], 0, [(1, 2, 3)], id="A12-one id"),
        pytest.param([], True, [1, 2], 0, [], id="an empty state is not parked"),
    ],
)
def test_a_live_state_is_cut_unless_all_of_it_would_be_lost_or_it_is_expected_back(
    held: list[int], is_return_expected: bool, prompt_ids: list[int], kept: int, parked: list[tuple[int, ...]]
) -> None:
    runner, pool = pooled(HashModel())
    if held:
        feed(runner, held)
    state = runner.state
    if is_return_expected:
        runner.expect_return()
    assert runner.try_reuse_prefix(prompt_ids) == kept
    assert [ids for ids, _ in pool.parked] == parked
    assert (runner.state is state) is not bool(parked)
    assert runner.record.ids == tuple(prompt_ids[:kept])
    check_states(runner, pool, HashModel)
    feed(runner, prompt_ids[kept:], kept)
    check_states(runner, pool, HashModel)  # what is parked does not change with what went on from it (A11)


def test_a_state_that_cannot_go_back_is_parked_whole_and_serves_again() -> None:  # 6, 7
    model = RecurrentModel()
    runner, pool = pooled(model)
    first = reply(runner, [5, 11, 23, 42])
    whole = runner.record.ids
    assert reply(runner, [5, 11, 9]) == cold([5, 11, 9], RecurrentModel)
    assert [ids for ids, _ in pool.parked] == [whole]
    model.evaluated = 0
    assert reply(runner, [*whole, 7]) == cold([*whole, 7], RecurrentModel)
    assert (model.evaluated, first) == (1 + 3, cold([5, 11, 23, 42], RecurrentModel))


def test_a_live_state_that_holds_nothing_more_than_the_parked_one_is_not_parked() -> None:
    runner, pool = pooled(HashModel(), slots=2)
    feed(runner, [1, 2, 3, 4])
    runner.expect_return()
    runner.try_reuse_prefix([1, 2, 9])  # a copy of 1 2, and nothing is fed to it
    assert (runner.record.ids, len(pool)) == ((1, 2), 1)
    assert runner.try_reuse_prefix([1, 2, 3, 4, 5]) == 4
    assert (runner.record.ids, len(pool)) == ((1, 2, 3, 4), 0)


def test_an_expected_return_stands_until_a_prompt_differs_and_no_longer() -> None:
    runner, pool = pooled(HashModel(), slots=3)
    feed(runner, [1, 2, 3])
    runner.expect_return()
    n_parked = []
    for prompt_ids in ([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 8]):
        continued(runner, prompt_ids)
        n_parked.append(len(pool))
    assert n_parked == [0, 0, 1, 1]


def test_a_state_is_not_copied_where_there_is_no_memory_for_it() -> None:
    runner, pool = pooled(HashModel(), slots=3)
    feed(runner, [1, 2, 3])
    runner.may_copy = False
    for prompt_ids in ([1, 2, 9], [7, 8]):
        runner.expect_return()
        continued(runner, prompt_ids)
        assert len(pool) == 0


@pytest.mark.parametrize("change", ["swap", "reset", "adopt"])
def test_an_expected_return_is_of_the_state_that_was_live(change: str) -> None:
    runner, pool = pooled(HashModel(), slots=3)
    feed(runner, [1, 2, 3])
    continued(runner, [7, 8, 9])
    runner.expect_return()
    if change == "swap":  # the prompt goes to a parked state, which stays whole as well
        assert runner.try_reuse_prefix([1, 2, 5]) == 2
        assert [ids for ids, _ in pool.parked] == [(1, 2, 3), (7, 8, 9)]
        return
    if change == "reset":
        runner.reset()
        feed(runner, [6, 6, 6])
    else:
        other = run(HashModel())
        feed(other, [6, 6, 6])
        runner.adopt(other.record, other.state)
    n_parked = len(pool)
    assert runner.try_reuse_prefix([6, 6, 1]) == 2
    assert len(pool) == n_parked


def test_without_a_pool_an_expected_return_changes_nothing() -> None:
    runner = run(HashModel())
    feed(runner, [1, 2, 3])
    state = runner.state
    runner.expect_return()
    assert runner.try_reuse_prefix([1, 9]) == 1
    assert runner.state is state


@pytest.mark.parametrize(
    ("slots", "evaluated", "evicted"),
    [
        # Each turn feeds what is new of its prompt, and three ids of its reply.
        (None, [23, 5, 23, 5], [False] * 4),
        (0, [23, 5, 23, 5], [False, True, True, True]),
        (1, [23, 5, 4, 4], [False] * 4),
        (2, [23, 5, 4, 4], [False] * 4),
    ],
)
def test_conversations_by_turns_equal_cold_runs(
    slots: int | None, evaluated: list[int], evicted: list[bool]
) -> None:  # A15
    model = HashModel()
    runner = run(model, slots=slots)
    for n_evaluated, is_evicted, prompt_ids in zip(
        evaluated, evicted, [FIRST, SECOND, FIRST, SECOND], strict=True
    ):
        model.evaluated = 0
        assert reply(runner, prompt_ids) == reply(run(HashModel()), prompt_ids)
        assert model.evaluated == n_evaluated
        assert runner.session_slot_evicted is is_evicted


def test_a_swap_moves_the_parked_state_back_and_copies_nothing() -> None:
    runner = run(HashModel(), slots=1)
    reply(runner, FIRST)
    state, record = runner.state, runner.record
    reply(runner, SECOND)
    assert runner.state is not state
    reply(runner, FIRST)
    assert runner.state is state
    assert runner.record is record


def test_the_least_recently_used_conversation_is_thrown_away_and_said_so() -> None:
    model = HashModel()
    runner = run(model, slots=1)
    said = []
    for prompt_ids in ([1, 2, 3], [4, 5, 6], [7, 8, 9], [4, 5, 6], [1, 2, 3]):
        model.evaluated = 0
        reply(runner, prompt_ids)
        said.append((runner.session_slot_evicted, model.evaluated - 3))
    assert said == [(False, 3), (False, 3), (True, 3), (False, 1), (True, 3)]


def test_of_two_states_that_serve_a_prompt_the_one_that_serves_more_is_taken() -> None:
    model = HashModel()
    other, (runner, pool) = run(model), pooled(model)
    feed(other, [1, 2, 3, 4])
    pool.park(other.record, other.state)
    feed(runner, [1, 9])
    assert runner.try_reuse_prefix([1, 2, 3, 4, 5]) == 4
    assert (runner.state, len(pool)) == (other.state, 1)
    feed(runner, [5, 6, 7], 4)
    assert runner.try_reuse_prefix([1, 2, 9]) == 2  # a parked state that serves less stays where it is
    assert runner.state is other.state


def test_the_flag_tells_of_the_latest_prompt_only() -> None:
    runner = run(HashModel(), slots=0)
    reply(runner, FIRST)
    reply(runner, SECOND)
    assert runner.session_slot_evicted
    reply(runner, [*SECOND, 5])
    assert not runner.session_slot_evicted


def test_an_empty_state_is_not_parked() -> None:
    runner = run(HashModel(), slots=1)
    reply(runner, FIRST)
    runner.reset()
    reply(runner, SECOND)
    assert not runner.session_slot_evicted


def test_a_parked_state_stays_as_it_was_and_can_serve_twice() -> None:  # A11
    runner = run(HashModel(), slots=1)
    feed(runner, [5, 11, 23, 42])
    state = runner.state
    said = []
    for _ in range(2):
        before = list(state.entries)
        reply(runner, SECOND, n_new=20)
        assert state.entries == before
        said.append(reply(runner, [5, 11, 23, 42, 9]))
        assert runner.state is state
    assert said[0] == said[1] == reply(run(HashModel()), [5, 11, 23, 42, 9])


def test_fifty_conversations_hold_three_states_and_the_live_one_goes_on() -> None:  # G7
    runner, pool = pooled(HashModel(), slots=3)
    for first in range(50):
        prompt_ids = [first, 60, 61]
        said = reply(runner, prompt_ids)
        assert len(pool) == min(first, 3)
        assert runner.record.ids == (*prompt_ids, *said)
    assert [ids[0] for ids, _ in pool.parked] == [46, 47, 48]


def test_states_are_thrown_away_for_their_bytes_and_that_is_said() -> None:  # G7
    runner, pool = pooled(HashModel(), slots=9, n_bytes=10)  # an entry of HashState counts as one
    said = []
    for prompt_ids in ([1, 2, 3], [4, 5, 6], [7, 8, 9], list(range(20, 32)), [0]):
        reply(runner, prompt_ids, n_new=2)
        said.append((runner.session_slot_evicted, [ids[0] for ids, _ in pool.parked]))
    assert said == [
        (False, []),
        (False, [1]),
        (False, [1, 4]),
        (True, [4, 7]),  # five entries each
        (True, [4, 7]),  # and the fourteen of this one never fit
    ]


def test_a_swap_for_a_smaller_state_can_cost_a_third_its_place() -> None:  # G7
    runner, pool = pooled(HashModel(), slots=9, n_bytes=12)
    for prompt_ids in ([1, 2, 3], [4, 5, 6], range(20, 30)):
        continued(runner, prompt_ids)
    assert runner.try_reuse_prefix([4, 5, 6, 7]) == 3
    assert runner.session_slot_evicted
    assert [ids[0] for ids, _ in pool.parked] == [20]


def test_states_can_be_thrown_away_for_their_memory_but_never_the_live_one() -> None:  # G7
    runner, pool = pooled(HashModel(), slots=2)
    for prompt_ids in ([1, 2], [3, 4], [5, 6]):
        continued(runner, prompt_ids)
    assert runner.evict_parked()
    assert [ids for ids, _ in pool.parked] == [(3, 4)]
    assert runner.evict_parked()
    assert not runner.evict_parked()
    assert runner.record.ids == (5, 6)
    assert not runner.session_slot_evicted  # that is of prompts
    assert not run(HashModel()).evict_parked()


def test_what_a_parked_state_would_serve_can_be_asked_and_changes_nothing() -> None:
    runner, pool = pooled(HashModel())
    for prompt_ids in ([1, 2, 3], [4, 5]):
        continued(runner, prompt_ids)
    assert [runner.n_parked(ids) for ids in ([1, 2, 9], [1, 2, 3, 4], [4, 5, 6])] == [2, 3, 0]
    assert (runner.record.ids, [ids for ids, _ in pool.parked]) == ((4, 5), [(1, 2, 3)])
    assert run(HashModel()).n_parked([1]) == 0


# --- a state that was computed elsewhere ---


@pytest.mark.parametrize("slots", [None, 0, 1])
@pytest.mark.parametrize("held", [[], FIRST], ids=["into an empty runner", "over a conversation"])
def test_an_adopted_state_goes_on_as_where_it_was_computed(slots: int | None, held: list[int]) -> None:  # 20
    elsewhere, model = run(HashModel()), HashModel()
    said = reply(elsewhere, [5, 11, 23, 42])
    runner = run(model, slots=slots)
    if held:
        feed(runner, held)
    runner.adopt(elsewhere.record, elsewhere.state)
    check_agreement(runner, 7)
    model.evaluated = 0
    assert reply(runner, [5, 11, 23, 42, *said, 9]) == cold([5, 11, 23, 42, *said, 9])
    assert model.evaluated == 1 + 3
    assert runner.try_reuse_prefix([5, 11, 23, 42]) == 3  # a prompt shorter than what was stored
    check_agreement(runner, 3)
    model.evaluated = 0
    assert reply(runner, [*FIRST, 1]) == cold([*FIRST, 1])
    assert model.evaluated == (1 if held and slots else 21) + 3


def test_a_record_of_another_length_is_not_adopted() -> None:
    runner, pool = pooled(HashModel())
    feed(runner, [1, 2, 3])
    elsewhere = run(HashModel())
    feed(elsewhere, [4, 5])
    with pytest.raises(ValueError, match="a record of 3 ids does not describe 2 positions"):
        runner.adopt(runner.record, elsewhere.state)
    assert (runner.record.ids, len(runner.state), len(pool)) == ((1, 2, 3), 3, 0)


def test_what_an_adopted_state_threw_away_is_in_the_next_report_and_no_prompt_is_blamed() -> None:
    runner, _ = pooled(HashModel(), slots=0)
    feed(runner, [1, 2, 3])
    elsewhere = run(HashModel())
    feed(elsewhere, [4, 5])
    runner.adopt(elsewhere.record, elsewhere.state)
    assert not runner.session_slot_evicted
    assert runner.try_reuse_prefix([1, 2, 3, 4]) == 0
    assert runner.reuse_report.n_evicted == 3


# --- faults between the states ---

# What a change of states calls, in the order it does.
CALLS: dict[str, tuple[type, str]] = {
    "copying": (HashState, "fork"),
    "making a record": (KvPrefix, "__init__"),
    "recording": (KvPrefix, "record"),
    "parking": (SessionPool, "park"),
    "marking": (HashState, "mark"),
}
CHANGES: dict[str, list[str]] = {
    "a swap": ["parking", "marking"],
    "nothing shared": ["copying", "making a record", "recording", "parking"],
    "expected back": list(CALLS),
    "adopted": ["parking"],
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("change", "call"), [(change, call) for change, calls in CHANGES.items() for call in calls]
)
def test_a_fault_while_states_change_leaves_each_whole_and_with_one_owner(
    change: str, call: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # 3
    runner, pool = pooled(HashModel(), slots=2)
    feed(runner, SECOND)
    continued(runner, FIRST)
    elsewhere = run(HashModel())
    feed(elsewhere, [80, 81, 82])
    if change == "expected back":
        runner.expect_return()
    owner, name = CALLS[call]
    original = getattr(owner, name)

    def fail(*arguments: Any) -> None:
        if when == "after":
            original(*arguments)
        raise MemoryError

    live = runner.state
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises(MemoryError):
            if change == "adopted":
                runner.adopt(elsewhere.record, elsewhere.state)
            else:
                prompts = {"a swap": [*SECOND, 5], "nothing shared": [7, 8], "expected back": [*FIRST[:5], 9]}
                runner.try_reuse_prefix(prompts[change])
    check_states(runner, pool, HashModel)
    if call in ("copying", "making a record", "recording"):
        assert (runner.state, runner.record.ids, len(pool)) == (live, tuple(FIRST), 1)
    n_parked = len(pool)
    assert runner.try_reuse_prefix([*runner.record.ids[:2], 9]) == min(2, len(runner.record))
    assert len(pool) == n_parked, "the expectation was of the prompt that failed"
    for prompt_ids in ([*FIRST, 1], [*SECOND, 5], [7, 8], [80, 81, 82, 83], [*FIRST[:5], 9]):
        assert reply(runner, prompt_ids) == cold(prompt_ids)
        check_states(runner, pool, HashModel)


# --- any conversations ---

KINDS: dict[str, MakeModel] = {
    "full": HashModel,
    "ring": partial(HashModel, window=3),
    "marked": partial(RecurrentModel, marks=True),
    "checkpoints": partial(RecurrentModel, every=3),
}
STEP = st.fixed_dictionaries(
    {
        "who": st.integers(0, 2),
        "n_back": st.integers(0, 5),  # ids that are taken back of the conversation
        "new_ids": st.lists(st.integers(1, 3), min_size=1, max_size=4),
        "n_fed_at_once": st.sampled_from([1, 2, 64]),
        "n_new": st.integers(0, 3),
        "is_return_expected": st.booleans(),
        "fault": st.none()
        | st.tuples(st.sampled_from(["before a chunk", "after its commit"]), st.integers(1, 4)),
    }
)


def waiting(
    runner: AnyRunner, pool: OpenPool, prompt_ids: Sequence[int], is_return_expected: bool
) -> tuple[list[Held], bool]:
    """Return what has to be parked once a prompt is served, were there room for all of it, and whether a return is
    still expected then: the rules, on a list."""

    def n_served(held: Held) -> int:
        ids, state = held
        return int(state.reach(min(common_length(ids, prompt_ids), len(prompt_ids) - 1)))

    live, parked = (runner.record.ids, runner.state), pool.parked
    n_kept = n_served(live)
    is_cut = n_kept < len(live[0])
    best = max(map(n_served, parked), default=0)
    if best > n_kept:
        latest = next(held for held in reversed(parked) if n_served(held) == best)
        stays = is_return_expected and best < len(latest[0])
        return [held for held in parked if held is not latest] + [latest] * stays + [live] * is_cut, False
    is_parked = is_cut and (n_kept == 0 or is_return_expected)
    return parked + [live] * is_parked, is_return_expected and not is_cut


def failing(fault: tuple[str, int] | None) -> Callable[[str], None]:
    """Return what raises when a boundary is passed for the n-th time."""
    left = fault[1] if fault else 0

    def interrupt(name: str) -> None:
        nonlocal left
        left -= fault is not None and name == fault[0]
        if fault is not None and name == fault[0] and left == 0:
            raise KeyboardInterrupt

    return interrupt


def served(
    runner: AnyRunner, prompt_ids: Sequence[int], kept: int, n_fed_at_once: int, n_new: int
) -> Iterator[int]:
    """Feed a prompt in chunks and yield the reply's ids, each before it is fed."""
    for position in range(kept, len(prompt_ids), n_fed_at_once):
        chunk = prompt_ids[position : position + n_fed_at_once]
        is_last = position + len(chunk) == len(prompt_ids)
        logits = runner.produce_chunk(chunk, position, need_logits=is_last)
        check_agreement(runner, position + len(chunk))
    for position in range(len(prompt_ids), len(prompt_ids) + n_new):
        yield (token := int(logits.argmax()))
        logits = runner.produce(token, position)
        check_agreement(runner, position + 1)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(slots=st.integers(0, 3), steps=st.lists(STEP, max_size=12))
def test_any_conversations_are_answered_as_cold_and_the_pool_holds_what_the_rules_say(
    kind: str, slots: int, steps: list[dict[str, Any]]
) -> None:
    make_model = KINDS[kind]
    model = make_model()
    runner, pool = pooled(model, slots=slots)
    conversations: list[list[int]] = [[], [], []]
    is_expected = False
    for step in steps:
        said_before = conversations[step["who"]]
        prompt_ids = [*said_before[: max(0, len(said_before) - step["n_back"])], *step["new_ids"]]
        if step["is_return_expected"]:
            runner.expect_return()
        is_expected |= step["is_return_expected"]
        expected, is_expected = waiting(runner, pool, prompt_ids, is_expected)
        kept = runner.try_reuse_prefix(prompt_ids)
        check_states(runner, pool, make_model)
        assert runner.record.ids == tuple(prompt_ids[:kept])
        assert pool.parked == expected[len(expected) - min(slots, len(expected)) :]
        assert runner.session_slot_evicted is (len(expected) > slots)
        assert runner.reuse_report.n_kept == kept

        reply_ids: list[int] = []
        model.evaluated, model.on_boundary = 0, failing(step["fault"])
        try:
            for token in served(runner, prompt_ids, kept, step["n_fed_at_once"], step["n_new"]):
                reply_ids.append(token)
        except KeyboardInterrupt:
            assert step["fault"] is not None
        else:
            assert len(reply_ids) == step["n_new"]
            assert model.evaluated == len(prompt_ids) - kept + step["n_new"]  # A20
        model.on_boundary = lambda name: None
        check_states(runner, pool, make_model)
        assert runner.record.ids == (*prompt_ids, *reply_ids)[: len(runner.record)]
        assert reply_ids == cold(prompt_ids, make_model, n_new=len(reply_ids))
        conversations[step["who"]] = [*prompt_ids, *reply_ids]
