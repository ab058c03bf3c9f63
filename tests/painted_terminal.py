"""A terminal inside the test: an emulated screen that prompt_toolkit paints on, and a keyboard that types into it."""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input

from turbospark_chat.terminal.frame_output import FrameOutput

TIMEOUT = 10.0  # seconds after which a condition is given up: only a wrong program gets there


class PaintedTerminal(io.StringIO):
    """The stream the program paints on; what it shows may be read from another thread."""

    def __init__(self, keyboard: PipeInput, *, rows: int = 40, columns: int = 100) -> None:
        super().__init__()
        self._keyboard = keyboard
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.Stream(self._screen)
        self._lock = threading.Condition()
        self._size = Size(rows=rows, columns=columns)
        self.output = FrameOutput(self, lambda: self._size, term="xterm", enable_cpr=False)

    def write(self, text: str) -> int:
        with self._lock:
            self._stream.feed(text)
            self._lock.notify_all()
        return len(text)

    @property
    def rows(self) -> list[str]:
        """Scrollback and screen, without the blank rows at the end."""
        with self._lock:
            shown = self._screen.buffer  # sparse; pyte's own `display` visits every cell
            lines = [*self._screen.history.top, *(shown[y] for y in range(max(shown, default=-1) + 1))]
            rows = [
                "".join(line[x].data for x in range(max(line, default=-1) + 1)).rstrip() for line in lines
            ]
        return "\n".join(rows).rstrip("\n").split("\n")

    def resize(self, columns: int) -> None:
        """Get wider or narrower, as xterm does: rows that are too long are cut off."""
        with self._lock:
            self._size = Size(rows=self._size.rows, columns=columns)
            self._screen.resize(columns=columns)

    def type(self, keys: str) -> None:
        self._keyboard.send_text(keys)

    def wait_for(self, condition: str | Callable[[], object]) -> None:
        """Wait until `condition` holds, or a row begins with it; AssertionError shows the screen if it never does."""
        deadline = time.monotonic() + TIMEOUT
        while not (
            any(row.startswith(condition) for row in self.rows) if isinstance(condition, str) else condition()
        ):
            if time.monotonic() > deadline:
                raise AssertionError("\n".join([f"not seen: {condition!r}", *self.rows]))
            with self._lock:
                self._lock.wait(
                    0.02
                )  # for something to be written; a condition may also be about other things


@contextmanager
def painted_terminal(*, rows: int = 40, columns: int = 100) -> Iterator[PaintedTerminal]:
    """Make it the terminal of every application built meanwhile."""
    with create_pipe_input() as keyboard:
        terminal = PaintedTerminal(keyboard, rows=rows, columns=columns)
        with create_app_session(keyboard, terminal.output):
            yield terminal
