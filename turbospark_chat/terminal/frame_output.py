"""What paints on the terminal; it can hold back what is only a part of the next picture.

prompt_toolkit writes text above the input in three pieces: the input is taken away and its modes with it, the text is
written, and only then is all drawn again. Seen piecemeal, the bar would flicker, and a paste that came just then would
come without its brackets, as lines of their own.
"""

import asyncio
import os
from typing import Any, TextIO

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.vt100 import Vt100_Output

_SECONDS_HELD = 0.1  # that a picture may take to come; then what was written shows without it


class FrameOutput(Vt100_Output):
    """Paints on a terminal. From `hold` to `release` nothing is written, and then all of it in one piece."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._late: asyncio.TimerHandle | None = None  # releases what is held, should nobody else
        self._shows_cursor = True  # when nothing is held

    @property
    def is_held(self) -> bool:
        """Whether nothing is written just now."""
        return self._late is not None

    def hold(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write nothing until `release`, or for 0.1 s; the cursor is hidden while it is written."""
        if self._late is None:
            self._late = loop.call_later(_SECONDS_HELD, self.release)
            super().hide_cursor()

    def release(self) -> None:
        """Write what was held; without `hold` this does nothing."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
            if self._shows_cursor:
                super().show_cursor()
            super().flush()

    def hide_cursor(self) -> None:
        """Hide the cursor; what is held leaves it hidden too."""
        self._shows_cursor = False
        super().hide_cursor()

    def show_cursor(self) -> None:
        """Show the cursor, at the earliest with what is held."""
        self._shows_cursor = True
        if not self.is_held:
            super().show_cursor()

    def flush(self) -> None:
        """Write what there is, unless it is held."""
        if not self.is_held:
            super().flush()


def open_output(stream: TextIO) -> FrameOutput:
    """Return what paints on the terminal `stream`.

    Without cursor position requests: their answers arrive between the keys, and not every terminal answers.
    """

    def get_size() -> Size:
        size = os.get_terminal_size(stream.fileno())
        return Size(rows=size.lines or 24, columns=size.columns or 80)

    return FrameOutput(stream, get_size, term=os.environ.get("TERM"), enable_cpr=False)
