"""One line on stderr while a long prompt is read, where stderr is a terminal; gone before the reply begins."""

from collections.abc import Callable
from typing import TextIO

from turbospark_chat.engine.progress import Prefill

QUIET_SECONDS = 0.5  # a prompt read sooner than this shows nothing


class PrefillLine:
    """Shows how far a prefill is: done, total, rate and time left. `clock` gives seconds.

    It is erased by spaces, not by an escape code, which a plain terminal would print.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._is_terminal = stream.isatty()
        self._started = clock()
        self._shown = ""

    def show(self, event: Prefill) -> None:
        """Draw the line anew, once it has taken a while."""
        seconds = self._clock() - self._started
        computed = event.done - event.reused
        if not self._is_terminal or seconds < QUIET_SECONDS or event.done == event.total or computed <= 0:
            return
        rate = computed / seconds
        left = (event.total - event.done) / rate
        self._draw(f"prefill {event.done}/{event.total}, {rate:.1f} tok/s, {left:.1f} s left")

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(len(self._shown)))
        self._stream.flush()
        self._shown = text
