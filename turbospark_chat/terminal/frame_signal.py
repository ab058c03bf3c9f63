"""Calls the screen's thread to its next frame, from whichever thread something has happened on."""

import asyncio
import contextlib

from turbospark_chat.terminal.frame_pacer import FramePacer


class FrameSignal:
    """Wakes the one coroutine that waits for frames, `pacer`'s rest apart.

    Of many calls between two frames one counts: the loop would go round for every token, and keep a core from the
    model.
    """

    def __init__(self, pacer: FramePacer) -> None:
        self._pacer = pacer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken, self._hurried = asyncio.Event(), asyncio.Event()
        self._is_waking = False

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take calls from here on; what happened before calls for a frame too."""
        self._loop = loop
        loop.call_soon(self._ring, False)

    def wake(self, *, at_once: bool = False) -> None:
        """Call for a frame, `at_once` without a rest before it; any thread may."""
        if self._loop is not None and (at_once or not self._is_waking):
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the screen has gone, and its loop with it
                self._loop.call_soon_threadsafe(self._ring, at_once)

    def _ring(self, at_once: bool) -> None:
        self._woken.set()
        if at_once:
            self._hurried.set()

    async def wait(self) -> None:
        """Wait until a frame is called for."""
        if not self._woken.is_set():
            await self._woken.wait()
            self._pacer.wake()
        self._woken.clear()
        self._is_waking = False  # before anybody looks: what happens from here on calls again

    async def rest(self) -> None:
        """Rest after a frame, by what it took."""
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancel that comes together with the call.
            async with asyncio.timeout(self._pacer.rest()):
                await self._hurried.wait()
        self._hurried.clear()
