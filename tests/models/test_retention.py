"""Which positions a layer keeps, and the room for them."""

import pytest

from turbospark_chat.models.retention import GROWTH_STEP, WINDOW_CHECKPOINTS, Retention, count_rows

GLOBAL, LOCAL = Retention(None, 3), Retention(4, 3)


@pytest.mark.parametrize(
    ("length", "first_seen", "first_kept"),
    [(0, 0, 0), (3, 0, 0), (4, 1, 0), (7, 4, 0), (8, 5, 1), (100, 97, 93)],
)
def test_a_window_sees_its_own_position_and_those_before_it_and_keeps_the_slack_beyond(
    length: int, first_seen: int, first_kept: int
) -> None:
    assert (LOCAL.first_seen(length), LOCAL.first_kept(length)) == (first_seen, first_kept)
    assert (GLOBAL.first_seen(length), GLOBAL.first_kept(length)) == (0, 0)


@pytest.mark.parametrize("length", range(40))
def test_what_is_kept_suffices_to_go_back_by_the_slack(length: int) -> None:
    for window in range(1, 9):
        for slack in range(9):
            one = Retention(window, slack)
            assert one.first_kept(length) <= one.first_seen(max(length - slack, 0))


@pytest.mark.parametrize(
    ("one", "n_rows", "present", "capacity"),
    [
        (GLOBAL, 1, 0, 256),
        (GLOBAL, 769, 768, 1280),  # half as much again, in whole steps
        (LOCAL, 1, 0, 256),
        (LOCAL, 257, 256, 512),
        (LOCAL, 300, 512, 512),  # what was there suffices once rows are dropped
        (LOCAL, 1000, 512, 1024),  # as large as a chunk needs, and no larger
    ],
)  # fmt: skip
def test_room_grows_by_half_but_in_a_window_no_further_than_a_step_past_what_it_keeps(
    one: Retention, n_rows: int, present: int, capacity: int
) -> None:
    assert one.capacity(n_rows, present) == capacity


def test_rows_are_counted_with_the_checkpoints_of_windows() -> None:  # G6
    assert count_rows([None, None], 50_000, slack=3) == 100_000
    assert count_rows([4], 2, slack=3) == 2 + WINDOW_CHECKPOINTS * 2
    assert count_rows([4, None], 50_000, slack=3) == 4 + 3 + GROWTH_STEP + WINDOW_CHECKPOINTS * 3 + 50_000
