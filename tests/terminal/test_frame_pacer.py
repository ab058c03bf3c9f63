"""The screen's rest between frames."""

import pytest

from turbospark_chat.terminal.frame_pacer import DRAWING_SHARE, FRAME_SECONDS, SLOWEST_FRAME, FramePacer


@pytest.mark.parametrize(
    ("taken", "rest"),
    [
        (0.0, FRAME_SECONDS),
        (FRAME_SECONDS * DRAWING_SHARE, FRAME_SECONDS),
        (0.003, 0.003 / DRAWING_SHARE),
        (1.0, SLOWEST_FRAME),
    ],
)
def test_a_frame_rests_by_what_it_took(taken: float, rest: float) -> None:
    spent = 5.0
    pacer = FramePacer(lambda: spent)
    for _ in range(2):
        spent += taken
        assert pacer.rest() == pytest.approx(rest)


def test_what_was_spent_in_idleness_counts_for_no_frame() -> None:
    spent = 5.0
    pacer = FramePacer(lambda: spent)
    spent += 3.0  # keys pressed, the bar drawn
    pacer.wake()
    assert pacer.rest() == FRAME_SECONDS
