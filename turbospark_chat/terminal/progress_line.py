"""One line on stderr while something takes long, where stderr is a terminal; gone before the reply begins.

It is erased by spaces, not by an escape code, which a plain terminal would print.
"""

from collections.abc import Callable
from typing import TextIO

from turbospark_chat.engine.progress import Prefill

QUIET_SECONDS = 0.5  # a prompt read sooner than this shows nothing


class ProgressLine:
    """A line that is drawn over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown = ""

    def draw(self, text: str) -> None:
        """Show text in place of what is shown."""
        if self._is_terminal:
            self._stream.write("\r" + text.ljust(len(self._shown)))
            self._stream.flush()
            self._shown = text

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self.draw("")
            self._stream.write("\r")
            self._stream.flush()


class CompileLine:
    """Shows how far the compiling of kernels is."""

    def __init__(self, stream: TextIO) -> None:
        self._line = ProgressLine(stream)

    def show(self, done: int, total: int) -> None:
        """Draw the line anew; it goes with the last kernel."""
        if done == total:
            self._line.clear()
        else:
            self._line.draw(f"compiling for this processor, once: {done + 1} of {total}")


class PrefillLine:
    """Shows how far a prefill is: done, total, rate and time left. `clock` gives seconds."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float]) -> None:
        self._line, self._clock = ProgressLine(stream), clock
        self._started = clock()

    def show(self, event: Prefill) -> None:
        """Draw the line anew, once it has taken a while."""
        seconds = self._clock() - self._started
        computed = event.done - event.reused
        if seconds < QUIET_SECONDS or event.done == event.total or computed <= 0:
            return
        rate = computed / seconds
        left = (event.total - event.done) / rate
        self._line.draw(f"prefill {event.done}/{event.total}, {rate:.1f} tok/s, {left:.1f} s left")

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()
