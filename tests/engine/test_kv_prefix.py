"""The record of ids behind a cache: what it claims to hold, and when it claims nothing."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix, MediaId

Step = Callable[[KvPrefix], None]


def record(*ids: int, at: int = 0) -> Step:
    return lambda prefix: prefix.record(ids, at)


def rewind(position: int) -> Step:
    return lambda prefix: prefix.rewind_to(position)


def after(*steps: Step) -> KvPrefix:
    prefix = KvPrefix()
    for step in steps:
        step(prefix)
    return prefix


TAINTED = (record(1, 2, 3), KvPrefix.taint, record(4, at=3))


@pytest.mark.parametrize(
    ("steps", "prompt_ids", "reusable"),
    [
        pytest.param([record(1, 2, 3)], [1, 2, 3, 4], 3, id="longer-prompt"),
        pytest.param([record(1, 2, 3, 9, 9)], [1, 2, 3, 7, 7, 8], 3, id="longest-not-all-or-nothing"),
        pytest.param([record(1, 2, 3)], [9, 2, 3, 4], 0, id="first-id-differs"),
        pytest.param([record(1, 2, 3)], [1, 2, 3], 2, id="2-same-prompt-leaves-one-to-feed"),
        pytest.param([record(1, 2, 3)], [1, 2], 1, id="A12-shorter-prompt"),
        pytest.param([record(1)], [1], 0, id="2-one-id"),
        pytest.param([record(1, 2, 3)], [], 0, id="A12-empty-prompt"),
        pytest.param([], [1, 2], 0, id="A13-empty-record"),
        pytest.param(TAINTED, [1, 2, 3, 4, 5], 0, id="tainted"),
        pytest.param([*TAINTED, rewind(2)], [1, 2, 3, 4], 0, id="taint-outlasts-a-rewind"),
        pytest.param([*TAINTED, rewind(0), record(1, 2)], [1, 2, 3], 0, id="taint-outlasts-rewriting"),
        pytest.param(
            [*TAINTED, KvPrefix.clear, record(1, 2, 3)], [1, 2, 3, 4], 3, id="clear-lifts-the-taint"
        ),
        pytest.param([record(1, 2, 3), record(9, at=5)], [1, 2, 3, 9, 0, 0, 7], 0, id="gap"),
        pytest.param([record(1, 2, 3), record(9, at=-1)], [1, 2, 9, 4], 0, id="negative-position"),
        pytest.param([record(1, 2, 3), record(7, 8, at=1)], [1, 7, 8, 4], 3, id="rewritten-tail"),
        pytest.param([record(1, 2, 3, 4), rewind(2)], [1, 2, 3, 4], 2, id="rewind"),
        pytest.param([record(1, 2, 3, 4), rewind(2), rewind(99)], [1, 2, 3, 4], 2, id="rewind-past-the-end"),
        pytest.param([record(1, 2), rewind(-1)], [1, 2, 3], 0, id="rewind-before-the-start"),
        pytest.param([record(1, 10, 11)], [1, 20, 21], 1, id="A13-only-bos-in-common"),
        pytest.param([record(1, 10, 11)], [1, 10, 11, 12], 3, id="A13-all-but-the-new-id"),
        pytest.param([record(1, 10)], [1, 10], 1, id="A13-equal-but-for-the-one-to-feed"),
        pytest.param([record(1, 10)], [1, 10, 11], 2, id="A13-equal"),
    ],
)
def test_reusable_length(steps, prompt_ids, reusable):
    assert after(*steps).common_prefix(prompt_ids) == reusable


def test_a_gap_drops_every_id_and_taints():
    prefix = after(record(1, 2, 3), record(9, at=5))
    assert (len(prefix), prefix.ids, prefix.is_tainted) == (0, (), True)


def test_clear_empties_and_lifts_the_taint():
    prefix = after(*TAINTED, KvPrefix.clear)
    assert (len(prefix), prefix.ids, prefix.is_tainted) == (0, (), False)


def test_ids_are_a_snapshot():
    prefix = after(record(1, 2))
    before = prefix.ids
    prefix.record([3], 2)
    assert (before, prefix.ids) == ((1, 2), (1, 2, 3))


# A picture's positions all carry one placeholder id; what is behind them is named by a digest. Case A9.

PLACEHOLDER = 900
X, Y = b"X" * 32, b"Y" * 32
ENDS_LIKE_X = b"Y" * 30 + X[-2:]


def with_picture(digest: bytes | None) -> list[int]:
    return [1, *[MediaId(PLACEHOLDER, digest)] * 4, 5]


@pytest.mark.parametrize(
    ("recorded", "prompt_ids", "reusable"),
    [
        pytest.param(with_picture(X), with_picture(X), 5, id="same-picture"),
        pytest.param(with_picture(X), with_picture(Y), 1, id="another-picture"),
        pytest.param(with_picture(X), with_picture(ENDS_LIKE_X), 1, id="last-16-bits-equal"),
        pytest.param(with_picture(X), [1, *[PLACEHOLDER] * 4, 5], 1, id="bare-ids-after-a-picture"),
        pytest.param([1, *[PLACEHOLDER] * 4, 5], with_picture(X), 1, id="picture-after-bare-ids"),
        pytest.param(with_picture(None), with_picture(None), 0, id="no-digest"),
        pytest.param(with_picture(X), with_picture(None), 0, id="prompt-without-digest"),
        pytest.param(with_picture(None), [1, 2, 3], 0, id="record-without-digest"),
    ],
)
def test_a_picture_is_reused_only_for_itself(recorded, prompt_ids, reusable):
    assert after(record(*recorded)).common_prefix(prompt_ids) == reusable


def test_another_picture_in_between_does_not_spoil_the_first():
    prefix = after(record(*with_picture(X)), rewind(1), record(*with_picture(Y)[1:], at=1), rewind(1))
    prefix.record(with_picture(X)[1:], 1)
    assert prefix.common_prefix(with_picture(X)) == 5


def test_undescribed_content_taints_even_after_it_is_cut_off():
    assert after(record(*with_picture(None)), rewind(1)).common_prefix([1, 2]) == 0


def test_media_ids_are_equal_by_id_and_digest():
    assert MediaId(PLACEHOLDER, X) == MediaId(PLACEHOLDER, X)
    assert hash(MediaId(PLACEHOLDER, X)) == hash(MediaId(PLACEHOLDER, X))
    assert MediaId(PLACEHOLDER, X) != MediaId(PLACEHOLDER + 1, X)
    assert MediaId(PLACEHOLDER, X) != PLACEHOLDER
    unknown = MediaId(PLACEHOLDER, None)
    assert unknown != unknown


# Against a model that spells the contract out with a cache: a dictionary from position to id, whose ids a
# tainted record does not know.

ids = st.lists(st.integers(0, 2), max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("record"), ids, st.integers(0, 8)),
        st.tuples(st.just("rewind_to"), st.integers(0, 8)),
        st.tuples(st.just("clear")),
        st.tuples(st.just("taint")),
    ),
    max_size=12,
)


@given(steps, st.lists(st.integers(0, 2), max_size=8))
def test_the_record_names_what_the_cache_was_built_from(steps, prompt_ids):
    prefix, cache, is_known = KvPrefix(), {}, True
    for name, *arguments in steps:
        getattr(prefix, name)(*arguments)
        if name == "clear":
            cache, is_known = {}, True
        elif name == "taint":
            is_known = False
        elif name == "rewind_to":
            cache = {position: id_ for position, id_ in cache.items() if position < arguments[0]}
        elif arguments[1] > len(cache):
            cache, is_known = {}, False
        else:
            new = dict(enumerate(arguments[0], start=arguments[1]))
            cache = {position: id_ for position, id_ in cache.items() if position < arguments[1]} | new
        assert prefix.ids == tuple(cache[position] for position in range(len(cache)))
        assert prefix.is_tainted is not is_known
        shared = [n for n in range(len(prompt_ids)) if list(prefix.ids[:n]) == prompt_ids[:n]]
        assert prefix.common_prefix(prompt_ids) == (max(shared, default=0) if is_known else 0)
