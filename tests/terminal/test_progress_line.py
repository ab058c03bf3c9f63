"""The line that says what takes long: kernels being compiled, a long prompt being read."""

import io

import pytest

from turbospark_chat.engine.progress import Prefill
from turbospark_chat.terminal.progress_line import CompileLine, PrefillLine, ProgressLine


class Stream(io.StringIO):
    """A stream that may be a terminal. `screen` is what its one line shows."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def screen(self) -> str:
        shown = ""
        for part in self.getvalue().split("\r"):
            shown = part + shown[len(part) :]
        return shown.rstrip()


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


# Any line


def test_a_drawn_line_takes_the_place_of_the_one_before_however_long():
    stream = Stream()
    line = ProgressLine(stream)
    for text in ("one of many", "two", "three of them"):
        line.draw(text)
        assert stream.screen == text
    assert "\n" not in stream.getvalue()


def test_a_line_is_seen_at_once():
    class Flushes(Stream):
        n_flushes = 0

        def flush(self) -> None:
            self.n_flushes += 1

    stream = Flushes()
    line = ProgressLine(stream)
    line.draw("one")
    assert stream.n_flushes == 1
    line.clear()
    assert stream.n_flushes > 1


def test_clearing_what_was_never_drawn_writes_nothing():
    stream = Stream()
    ProgressLine(stream).clear()
    assert stream.getvalue() == ""


def test_a_file_gets_no_line():
    stream = Stream(is_terminal=False)
    line = ProgressLine(stream)
    line.draw("one")
    line.clear()
    assert stream.getvalue() == ""


# Kernels being compiled


def test_the_kernel_under_way_is_counted_from_one_and_the_line_goes_with_the_last():
    stream = Stream()
    line = CompileLine(stream)
    seen = []
    for done in range(4):
        line.show(done, 3)
        seen.append(stream.screen)
    start = "compiling for this processor, once: "
    assert seen == [f"{start}1 of 3", f"{start}2 of 3", f"{start}3 of 3", ""]
    assert stream.getvalue()[-1] == "\r"
    assert "\x1b" not in stream.getvalue()


# A prompt being read


def test_a_prompt_read_within_half_a_second_shows_nothing(clock):  # T78
    stream = Stream()
    line = PrefillLine(stream, clock=clock)
    clock.now += 0.49
    line.show(Prefill(done=64, total=640, reused=0))
    line.clear()
    assert stream.getvalue() == ""


def test_after_half_a_second_it_shows_done_of_total_the_rate_and_what_is_left(clock):  # T78
    stream = Stream()
    line = PrefillLine(stream, clock=clock)
    clock.now += 0.5
    line.show(Prefill(done=164, total=664, reused=100))
    assert stream.screen == "prefill 164/664, 128.0 tok/s, 3.9 s left"
    clock.now += 0.5
    line.show(Prefill(done=600, total=664, reused=100))
    assert stream.screen == "prefill 600/664, 500.0 tok/s, 0.1 s left"


def test_a_shorter_line_leaves_nothing_of_the_longer_one(clock):
    stream = Stream()
    line = PrefillLine(stream, clock=clock)
    clock.now += 1.0
    line.show(Prefill(done=1, total=10_000, reused=0))
    clock.now += 1.0
    line.show(Prefill(done=9_999, total=10_000, reused=0))
    assert stream.screen == "prefill 9999/10000, 4999.5 tok/s, 0.0 s left"


def test_cleared_the_line_is_empty_and_the_cursor_at_its_start(clock):
    stream = Stream()
    line = PrefillLine(stream, clock=clock)
    clock.now += 1.0
    line.show(Prefill(done=64, total=640, reused=0))
    line.clear()
    assert (stream.screen, stream.getvalue()[-1]) == ("", "\r")
    written = stream.getvalue()
    line.clear()
    assert stream.getvalue() == written


@pytest.mark.parametrize(
    ("event", "is_terminal"),
    [
        (Prefill(done=64, total=640, reused=0), False),
        (Prefill(done=640, total=640, reused=0), True),
        (Prefill(done=64, total=640, reused=64), True),
    ],
    ids=["no terminal", "done", "nothing computed yet"],
)
def test_there_is_no_line_where_it_would_say_nothing(clock, event, is_terminal):
    stream = Stream(is_terminal=is_terminal)
    line = PrefillLine(stream, clock=clock)
    clock.now += 1.0
    line.show(event)
    line.clear()
    assert stream.getvalue() == ""


def test_no_escape_code_is_written(clock):  # H6, TERM=dumb
    stream = Stream()
    line = PrefillLine(stream, clock=clock)
    clock.now += 1.0
    line.show(Prefill(done=64, total=640, reused=0))
    line.clear()
    assert "\x1b" not in stream.getvalue()
