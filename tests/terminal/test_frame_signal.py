"""What calls the screen's thread to its next frame."""

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest

from turbospark_chat.terminal.frame_pacer import FramePacer
from turbospark_chat.terminal.frame_signal import FrameSignal

LONG = 60.0  # seconds; only a wrong program rests so long
SHORT = 0.05


class Pacer(FramePacer):
    """Rests after every frame for as long as it is told to."""

    def __init__(self, rest: float) -> None:
        super().__init__(lambda: 0.0)
        self.seconds = rest

    def rest(self) -> float:
        return self.seconds


def from_another_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def run(coroutine: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, LONG / 2))


def test_a_frame_comes_when_it_is_called_for_and_none_otherwise() -> None:
    async def frames() -> None:
        signal = FrameSignal(Pacer(0.0))
        signal.wake()  # before it listens: that one comes as it begins
        signal.listen(asyncio.get_running_loop())
        await signal.wait()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(signal.wait(), SHORT)
            for _ in range(5):
                from_another_thread(signal.wake)
            await signal.wait()

    run(frames())


def test_what_is_shown_at_once_ends_the_rest_and_anything_else_waits_for_its_end() -> None:
    async def frames() -> None:
        signal = FrameSignal(Pacer(LONG))
        signal.listen(asyncio.get_running_loop())
        from_another_thread(signal.wake)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(signal.rest(), SHORT)
        from_another_thread(lambda: signal.wake(at_once=True))  # though it is called already
        await signal.rest()
        with pytest.raises(TimeoutError):  # that rest, and no other
            await asyncio.wait_for(signal.rest(), SHORT)

    run(frames())


def test_a_call_once_the_loop_has_gone_is_nothing() -> None:
    signal = FrameSignal(Pacer(0.0))

    async def begin() -> None:
        signal.listen(asyncio.get_running_loop())

    run(begin())
    signal.wake(at_once=True)
