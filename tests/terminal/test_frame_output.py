"""What paints on the terminal, and holds back what is only a part of a picture."""

import asyncio
import io
import re
from collections.abc import Iterator

import pytest
from prompt_toolkit.data_structures import Size

from turbospark_chat.terminal import frame_output
from turbospark_chat.terminal.frame_output import FrameOutput

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Stream(io.StringIO):
    """A stream that knows what was written to it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return len(text)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def output(stream: Stream) -> FrameOutput:
    output = FrameOutput(stream, lambda: Size(rows=24, columns=80), term="xterm")
    output.show_cursor()
    output.flush()
    stream.pieces.clear()
    return output


def test_what_is_held_is_written_in_one_piece_with_the_cursor_hidden(
    output: FrameOutput, stream: Stream, loop: asyncio.AbstractEventLoop
) -> None:
    output.hold(loop)
    for text in ("one", "two"):
        output.show_cursor()  # as whoever writes a part of it may do
        output.write_raw(text)
        output.flush()
    assert stream.pieces == []
    output.release()
    (piece,) = stream.pieces
    shown = re.fullmatch(rf"{re.escape(HIDE)}onetwo(.*)", piece)
    assert shown and shown[1].endswith(SHOW)


def test_a_cursor_hidden_meanwhile_stays_hidden(
    output: FrameOutput, stream: Stream, loop: asyncio.AbstractEventLoop
) -> None:
    output.hold(loop)
    output.hide_cursor()
    output.write_raw("one")
    output.release()
    assert stream.pieces == [f"{HIDE}one"]


def test_without_a_hold_all_is_written_as_it_comes(output: FrameOutput, stream: Stream) -> None:
    output.release()
    for text in ("one", "two"):
        output.write_raw(text)
        output.flush()
    assert stream.pieces == ["one", "two"]


def test_a_second_hold_changes_nothing(
    output: FrameOutput, stream: Stream, loop: asyncio.AbstractEventLoop
) -> None:
    for text in ("one", "two"):
        output.hold(loop)
        output.write_raw(text)
    output.release()
    assert len(stream.pieces) == 1 and "onetwo" in stream.pieces[0]


def test_what_nobody_releases_is_written_all_the_same(
    output: FrameOutput, stream: Stream, loop: asyncio.AbstractEventLoop
) -> None:
    async def hold() -> None:
        output.hold(loop)
        output.write_raw("one")
        while output.is_held:
            await asyncio.sleep(0.01)

    loop.run_until_complete(asyncio.wait_for(hold(), 10))
    assert "one" in "".join(stream.pieces)


def test_a_hold_that_has_ended_cuts_no_later_one_short(
    output: FrameOutput, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_output, "_SECONDS_HELD", 0.0)
    output.hold(loop)
    output.release()
    monkeypatch.setattr(frame_output, "_SECONDS_HELD", 60.0)
    output.hold(loop)
    loop.run_until_complete(asyncio.sleep(0.01))
    assert output.is_held
