"""The bar is drawn anew where there is something to read, not for every token."""

from dataclasses import replace

import pytest

from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.bar_painter import STEADY_SECONDS, BarPainter
from turbospark_chat.terminal.status_bar import Activity, StatusSnapshot
from turbospark_chat.terminal.vitals import Vitals

READING = Activity(prefill_done=64, prefill_total=200, prefill_seconds=0.1)
WRITING = replace(READING, prefill_done=200, n_tokens=5, decode_seconds=0.1)
STATUS = StatusSnapshot("tiny", 512, 205, Vitals(MemoryPressure.NORMAL, 1_000_000), activity=WRITING)


class Bar:
    def __init__(self) -> None:
        self.now = 0.0
        self.painter = BarPainter(Painter(color=False), clock=lambda: self.now)

    def draw(self, status: StatusSnapshot, width: int = 120) -> str:
        return self.painter.draw(status, width)


@pytest.fixture
def bar() -> Bar:
    return Bar()


def test_counts_stand_still_for_a_moment_and_then_move(bar: Bar) -> None:
    first = bar.draw(STATUS)
    assert "5 out" in first
    later = replace(STATUS, context_used=230, activity=replace(WRITING, n_tokens=30, decode_seconds=0.2))
    bar.now = STEADY_SECONDS * 0.9
    assert bar.draw(later) == first
    bar.now = STEADY_SECONDS
    assert "30 out" in bar.draw(later)


@pytest.mark.parametrize(
    "change",
    [
        {"activity": None},
        {"activity": READING},
        {"activity": replace(WRITING, n_queued=1)},
        {"activity": replace(WRITING, n_tokens=0)},
        {"vitals": Vitals(MemoryPressure.WARN, 1_000_000)},
        {"model": "other"},
    ],
    ids=["the turn ended", "the next one reads", "a message waits", "no token yet", "pressure", "model"],
)
def test_whatever_else_changes_shows_at_once(bar: Bar, change: dict[str, object]) -> None:
    before = bar.draw(STATUS)
    after = replace(STATUS, **change)  # type: ignore[arg-type]
    assert bar.draw(after) == BarPainter(Painter(color=False), clock=lambda: 0.0).draw(after, 120) != before


def test_another_width_shows_at_once(bar: Bar) -> None:
    bar.draw(STATUS)
    assert max(map(len, bar.draw(STATUS, width=30).splitlines())) <= 30


def test_a_bar_at_rest_is_as_it_is(bar: Bar) -> None:
    for used in (10, 20):
        assert f"ctx {used}/512" in bar.draw(replace(STATUS, context_used=used, activity=None))
