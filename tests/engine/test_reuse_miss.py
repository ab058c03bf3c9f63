"""What a producer's report makes of a prompt: nothing missed, or where, between which ids, and why."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes import HashModel, RecurrentModel
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix, MediaId
from turbospark_chat.engine.producer import ScriptedProducer
from turbospark_chat.engine.reuse_miss import MissCause, ReportsReuse, ReuseMiss
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.models.reuse_report import ReuseReport
from turbospark_chat.models.runner import Runner

# Ten positions are held; the prompt begins with six of them, and has 60 where 6 stands.
REPORT = ReuseReport(n_held=10, n_common=6, n_kept=6, held_id=6, is_tainted=False, n_evicted=0)
PROMPT = [0, 1, 2, 3, 4, 5, 60, 61, 62]
NOTHING = replace(REPORT, n_held=0, n_common=0, n_kept=0, held_id=None)


@pytest.mark.parametrize(
    ("report", "miss"),
    [
        pytest.param(REPORT, ReuseMiss(MissCause.DIFFERS, 6, 6, 6, 60), id="another id"),
        pytest.param(
            replace(REPORT, n_kept=4), ReuseMiss(MissCause.REFUSED, 4, 6, 6, 60), id="goes back too far"
        ),
        pytest.param(
            replace(REPORT, n_kept=0), ReuseMiss(MissCause.REFUSED, 0, 6, 6, 60), id="cannot go back"
        ),
        pytest.param(
            replace(REPORT, n_held=6, n_kept=0, held_id=None),
            ReuseMiss(MissCause.REFUSED, 0, 6, None, 60),
            id="cannot even stay",
        ),
        pytest.param(
            replace(REPORT, n_common=0, n_kept=0, held_id=0, is_tainted=True),
            ReuseMiss(MissCause.TAINTED, 0, 0, 0, 0),
            id="tainted",
        ),
        pytest.param(
            replace(NOTHING, is_tainted=True),
            ReuseMiss(MissCause.TAINTED, 0, 0, None, 0),
            id="tainted, and no id is known",
        ),
        pytest.param(
            replace(REPORT, n_common=0, n_kept=0, held_id=0),
            ReuseMiss(MissCause.TAINTED, 0, 0, 0, 0),
            id="A9-equal ids that do not count",
        ),
        pytest.param(replace(REPORT, n_evicted=7), ReuseMiss(MissCause.EVICTED, 6, 6, 6, 60), id="evicted"),
        pytest.param(
            replace(REPORT, n_kept=4, n_evicted=5),
            ReuseMiss(MissCause.EVICTED, 4, 6, 6, 60),
            id="evicted, and what is left refuses",
        ),
        pytest.param(
            replace(NOTHING, n_evicted=3),
            ReuseMiss(MissCause.EVICTED, 0, 0, None, 0),
            id="evicted, and nothing is left",
        ),
        pytest.param(
            replace(REPORT, n_evicted=6),
            ReuseMiss(MissCause.DIFFERS, 6, 6, 6, 60),
            id="what was evicted would have served no more",
        ),
        pytest.param(replace(REPORT, n_held=6, held_id=None), None, id="a pure continuation"),
        pytest.param(NOTHING, None, id="an empty cache"),
    ],
)
def test_a_miss_names_where_between_which_ids_and_why(report, miss):
    assert ReuseMiss.of(report, PROMPT) == miss


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, held_id=5, n_common=5, n_kept=5),
        replace(REPORT, held_id=5, n_common=5, n_kept=5, n_evicted=5),
        replace(REPORT, n_held=6, held_id=5, n_common=5, n_kept=5),
    ],
    ids=["retry", "retry of what was evicted too", "the very same prompt"],
)
def test_a_prompt_of_which_all_but_the_last_id_is_kept_misses_nothing(report):  # case 2
    assert ReuseMiss.of(report, PROMPT[:6]) is None


def test_a_prompt_of_one_id_misses_nothing():
    assert ReuseMiss.of(replace(NOTHING, n_held=3, held_id=7), [5]) is None


@pytest.mark.parametrize("n_common", [5, 6], ids=["all but the one to feed", "that one too"])
def test_where_ids_agree_to_the_end_a_refusal_stands_at_the_last(n_common):
    report = replace(REPORT, n_common=n_common, n_kept=0, held_id=5)
    assert ReuseMiss.of(report, PROMPT[:6]) == ReuseMiss(MissCause.REFUSED, 0, 5, 5, 5)


# The reports of a real producer


def runner(model=None, *, slots: int = 1) -> Runner:
    return Runner(model or HashModel(), KvPrefix, pool=SessionPool(slots))


def missed(producer: Runner, prompt_ids: Sequence[int]) -> ReuseMiss | None:
    """Bring a prompt in and return what was missed of it."""
    kept = producer.try_reuse_prefix(prompt_ids)
    miss = ReuseMiss.of(producer.reuse_report, prompt_ids)
    assert miss is None or miss.position == kept
    if kept == 0:
        producer.reset()
    producer.produce_chunk(prompt_ids[kept:], kept, need_logits=True)
    return miss


def causes(producer: Runner, *prompts: Sequence[int]) -> list[MissCause | None]:
    misses = [missed(producer, prompt_ids) for prompt_ids in prompts]
    return [None if miss is None else miss.cause for miss in misses]


def test_a_new_cache_a_continuation_and_a_retry_miss_nothing():
    retried = [1, 2, 3, 4]
    assert causes(runner(), [1, 2], [1, 2, 3, 4], retried, retried[:3], [1, 2, 3, 9]) == [None] * 5
    with_marks = runner(RecurrentModel(marks=True))
    assert causes(with_marks, [1, 2], [1, 2, 3, 4], retried) == [None] * 3


@pytest.mark.parametrize("slots", [0, 1, 3])
@pytest.mark.parametrize("is_return_expected", [False, True])
def test_a_miss_is_the_same_whatever_becomes_of_the_state_it_is_about(slots, is_return_expected):
    producer = runner(slots=slots)
    missed(producer, [1, 2, 3, 9, 9])
    if is_return_expected:
        producer.expect_return()
    assert missed(producer, [1, 2, 3, 7, 7, 8]) == ReuseMiss(MissCause.DIFFERS, 3, 3, 9, 7)


@pytest.mark.parametrize("slots", [0, 1])
@pytest.mark.parametrize(
    ("model", "held", "prompt_ids", "miss"),
    [
        (
            HashModel(window=4), [*range(10, 22)], [*range(10, 19), 60, 61],
            ReuseMiss(MissCause.REFUSED, 0, 9, 19, 60),
        ),
        (RecurrentModel(), [5, 11, 23, 42], [5, 11, 9, 9], ReuseMiss(MissCause.REFUSED, 0, 2, 23, 9)),
        (RecurrentModel(every=2), [5, 11, 23, 42, 7], [5, 11, 23, 9, 9], ReuseMiss(MissCause.REFUSED, 2, 3, 42, 9)),
    ],
    ids=["5", "6", "6-checkpoint"],
)  # fmt: skip
def test_a_state_that_cannot_go_back_is_said_to_refuse_though_it_is_parked(
    slots, model, held, prompt_ids, miss
):
    producer = runner(model, slots=slots)
    missed(producer, held)
    assert missed(producer, prompt_ids) == miss


def test_a_taint_is_told_once():
    producer = runner()
    missed(producer, [1, 2, 3])
    producer.record.taint()
    assert causes(producer, [1, 2, 3, 4], [1, 2, 3, 4, 5]) == [MissCause.TAINTED, None]


def test_a_picture_is_told_apart_by_what_it_shows():  # A9
    shows = [MediaId(900 % 97, digest) for digest in (b"x" * 16, b"y" * 16)]
    with_x, with_y = ([1, *[picture] * 4, 5] for picture in shows)
    unknown = [1, *[MediaId(900 % 97, None)] * 4, 5]
    producer = runner(slots=0)
    missed(producer, with_x)
    miss = missed(producer, with_y)
    assert (miss.cause, miss.position, miss.held_id.digest, miss.prompt_id.digest) == (
        MissCause.DIFFERS, 1, b"x" * 16, b"y" * 16,
    )  # fmt: skip
    # It has no digest to compare, though its first id is the one that is held; and then no digest to be compared with.
    assert causes(producer, unknown, with_x) == [MissCause.TAINTED, MissCause.TAINTED]


def test_what_was_thrown_away_for_want_of_room_is_missed_until_it_is_computed_again():
    first, second, third = [1, 2, 3, 4], [20, 21, 22], [30, 31]
    producer = runner(slots=1)
    assert causes(producer, first, second)[0] is None
    assert missed(producer, third).cause is MissCause.DIFFERS  # `first` is evicted for it
    assert missed(producer, [*first, 5]) == ReuseMiss(MissCause.EVICTED, 0, 0, 30, 1)
    assert causes(producer, [*first, 5, 6], [1, 2, 3, 9, 9]) == [None, MissCause.DIFFERS]


def test_what_was_thrown_away_by_hand_is_missed_too():
    producer = runner()
    causes(producer, [1, 2, 3], [20, 21])
    assert producer.evict_parked()
    assert causes(producer, [1, 2, 3, 4], [20, 21, 22, 23]) == [MissCause.EVICTED, None]


@pytest.mark.parametrize(
    ("prompt_ids", "cause"), [([5, 11, 23, 42, 9], MissCause.EVICTED), ([5, 11, 9], MissCause.DIFFERS)]
)
def test_a_state_thrown_away_is_missed_only_where_it_could_have_served(prompt_ids, cause):
    producer = runner(RecurrentModel(), slots=0)
    causes(producer, [5, 11, 23, 42], [30, 31])
    assert missed(producer, prompt_ids).cause is cause


def test_what_a_prompt_itself_throws_away_is_not_missed_by_it():
    producer = runner(RecurrentModel(), slots=0)
    missed(producer, [5, 11, 23, 42])
    assert missed(producer, [5, 11, 9]).cause is MissCause.REFUSED
    assert producer.session_slot_evicted


def test_the_report_is_of_the_parked_state_that_was_chosen():
    producer = runner()
    causes(producer, [1, 2, 3, 4, 5], [20, 21])
    assert missed(producer, [1, 2, 3, 9, 9]) == ReuseMiss(MissCause.DIFFERS, 3, 3, 4, 9)
    assert producer.reuse_report == ReuseReport(
        n_held=5, n_common=3, n_kept=3, held_id=4, is_tainted=False, n_evicted=0
    )


def test_a_producer_that_tells_nothing_is_not_asked():
    assert isinstance(runner(), ReportsReuse)
    assert not isinstance(ScriptedProducer([], vocab_size=3, end_id=0), ReportsReuse)


IDS = st.lists(st.integers(1, 3), min_size=1, max_size=6)
MODELS = {
    "full": HashModel,
    "window": lambda: HashModel(window=2),
    "marks": lambda: RecurrentModel(marks=True),
    "every 2": lambda: RecurrentModel(every=2),
}


@settings(deadline=None)
@given(prompts=st.lists(st.tuples(IDS, st.booleans()), max_size=8), slots=st.integers(0, 3),
       make_model=st.sampled_from(list(MODELS.values())))  # fmt: skip
def test_a_miss_stands_where_computing_begins_and_its_ids_are_those_that_stood_there(
    prompts, slots, make_model
):
    producer = runner(make_model(), slots=slots)
    for prompt_ids, is_return_expected in prompts:
        if is_return_expected:
            producer.expect_return()
        miss, report = missed(producer, prompt_ids), producer.reuse_report
        assert report.n_kept <= report.n_common <= report.n_held
        if miss is None:
            assert report.n_kept in (len(prompt_ids) - 1, report.n_held)
        else:
            assert miss.position == report.n_kept < len(prompt_ids) - 1
            assert miss.position <= miss.differs_at
            assert (miss.held_id, miss.prompt_id) == (report.held_id, prompt_ids[miss.differs_at])
            is_one_id = miss.held_id == miss.prompt_id
            assert not is_one_id or miss.differs_at == len(prompt_ids) - 1
