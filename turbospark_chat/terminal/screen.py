"""The one prompt_toolkit application that owns the terminal: live text, input line, status bar.

Finished text goes above it, into the scrollback, and is never touched again. Knows no chat.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output

from turbospark_chat.terminal.keys import KeyActions, make_key_bindings

MOST_INPUT_ROWS = 10


def open_output(stream: TextIO) -> Output:
    """Return what paints on the terminal `stream`.

    Without cursor position requests: their answers arrive between the keys, and not every terminal answers.
    """

    def get_size() -> Size:
        size = os.get_terminal_size(stream.fileno())
        return Size(rows=size.lines or 24, columns=size.columns or 80)

    return Vt100_Output(stream, get_size, term=os.environ.get("TERM"), enable_cpr=False)


class Screen:
    """The running application. Its methods belong on its own thread, but for `invalidate`."""

    def __init__(
        self,
        actions: KeyActions,
        *,
        live_text: Callable[[], str],
        prompt: Callable[[], str],
        status: Callable[[int], str],
        history: History,
        output: Output,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._output, self._on_error = output, on_error
        self._prompt = prompt
        self._buffer = Buffer(multiline=True, history=history)
        live = Window(FormattedTextControl(lambda: ANSI(live_text())), height=1)
        input_window = Window(
            BufferControl(self._buffer),
            wrap_lines=True,
            dont_extend_height=True,
            height=Dimension(min=1, max=MOST_INPUT_ROWS),
            get_line_prefix=self._line_prefix,
        )
        bar = Window(FormattedTextControl(lambda: ANSI(status(self.size.columns))), dont_extend_height=True)
        is_live = Condition(lambda: bool(live_text()))
        rows = HSplit([ConditionalContainer(live, is_live), input_window, bar], align=VerticalAlign.TOP)
        self._is_aside = False
        self._app: Application[int] = Application(
            Layout(
                ConditionalContainer(rows, Condition(lambda: not self._is_aside)),
                focused_element=input_window,
            ),
            key_bindings=make_key_bindings(actions, self._buffer),
            output=output,
            erase_when_done=True,
        )

    @property
    def size(self) -> Size:
        """The terminal's size."""
        return self._output.get_size()

    @property
    def input_text(self) -> str:
        """What is typed and not yet sent."""
        return self._buffer.text

    @input_text.setter
    def input_text(self, text: str) -> None:
        self._buffer.text = text
        self._buffer.cursor_position = len(text)

    async def run(self, on_start: Callable[[asyncio.AbstractEventLoop], None]) -> int:
        """Own the terminal until `close`; return the exit code given there.

        SIGTERM and SIGHUP close it too, with 128 and their number: killed outright, it would leave the terminal raw.
        """
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():  # the only one that gets signals
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.close, 128 + number)
            loop.add_signal_handler(signal.SIGCONT, self._take_terminal_again)
        loop.set_exception_handler(self._report)
        return await self._app.run_async(pre_run=lambda: on_start(loop), set_exception_handler=False)

    def close(self, exit_code: int) -> None:
        """End `run`."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit(result=exit_code)

    def fail(self, error: Exception) -> None:
        """End `run` by raising `error` from it."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit(exception=error)

    def invalidate(self) -> None:
        """Draw again soon; any thread may ask."""
        self._app.invalidate()

    def write_above(self, text: str) -> None:
        """Put finished text, escape codes included, above the input; it must end in a newline."""
        self._app.renderer.erase(leave_alternate_screen=False)
        self._output.write_raw(text.replace("\n", "\r\n"))
        self._output.flush()
        self._app.invalidate()

    def _take_terminal_again(self) -> None:
        """Make the terminal raw again: a shell that stopped this program has made it its own meanwhile."""
        self._app.input.raw_mode().__enter__()  # `run` restores what was there at its own start
        self._app.renderer.reset()
        self._app.invalidate()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Show an error nobody caught; prompt_toolkit's own handler would ask for a key and keep all others."""
        error = context.get("exception")
        self._on_error(error if error is not None else RuntimeError(context["message"]))

    def stand_aside(self) -> None:
        """Draw nothing until `come_back`, and leave the cursor where something else may write whole lines."""
        if not self._is_aside:
            self._is_aside = True
            self._app.renderer.erase(leave_alternate_screen=False)

    def come_back(self) -> None:
        """Draw again, below what was written meanwhile."""
        self._is_aside = False
        self._app.invalidate()

    def _line_prefix(self, line_number: int, wrap_count: int) -> StyleAndTextTuples:
        prompt = self._prompt()
        return [("", prompt if line_number == wrap_count == 0 else " " * len(prompt))]
