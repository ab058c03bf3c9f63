"""Runs `ts` as a user meets it: in a pseudo-terminal with an emulated screen, or through pipes.

Nothing here sleeps for a fixed time: what is waited for is a condition on what the program wrote.
"""

import os
import re
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

TS = str(Path(sys.executable).with_name("ts"))
TIMEOUT = 60.0  # seconds after which a condition is given up: only a wrong program gets there

ENTER, CTRL_C, CTRL_D, CTRL_J, BACKSPACE, LEFT, UP = "\r", "\x03", "\x04", "\n", "\x7f", "\x1b[D", "\x1b[A"


def environment(**changes: str) -> dict[str, str]:
    """The test's environment for a child. One BLAS thread: two that share a busy core run ten times slower."""
    return {**os.environ, "TERM": "xterm-256color", "OPENBLAS_NUM_THREADS": "1", **changes}


def paste(text: str) -> str:
    """What a terminal sends for a paste: it turns newlines into carriage returns."""
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


class Terminal:
    """`ts` in a pseudo-terminal. `shell` may redirect its streams; `"$@"` there is the command."""

    def __init__(
        self,
        *arguments: str | Path,
        rows: int = 24,
        columns: int = 100,
        shell: str = 'exec "$@"',
        **variables: str,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=20_000)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""  # everything the program sent to the terminal
        with warnings.catch_warnings():
            # Python warns of forking beside numpy's threads; this child only executes another program.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = pexpect.spawn(
                "/bin/sh", ["-c", shell, "sh", TS, *map(str, arguments)],
                env=environment(**variables), dimensions=(rows, columns), timeout=TIMEOUT,
            )  # fmt: skip
        os.set_blocking(self._child.child_fd, False)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.close(force=True)

    @property
    def pid(self) -> int:
        """The process, as long as `shell` ends in exec."""
        return int(self._child.pid)

    @property
    def rows(self) -> list[str]:
        """What is on the screen."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def scrollback(self) -> list[str]:
        """What went off the top of the screen."""
        columns = range(self._screen.columns)
        return ["".join(row[column].data for column in columns).rstrip() for row in self._screen.history.top]

    @property
    def text(self) -> str:
        """Scrollback and screen."""
        return "\n".join([*self.scrollback, *self.rows])

    @property
    def bar(self) -> str:
        """The status bar in one line, or nothing where there is none."""
        rows = self.rows
        starts = [number for number, row in enumerate(rows) if " · ctx " in row]
        return " · ".join(row for row in rows[starts[-1] :] if row) if starts else ""

    @property
    def is_idle(self) -> bool:
        """Whether the bar says that nothing runs."""
        return bool(self.bar) and "Ctrl-C stops" not in self.bar and "· prefill ·" not in self.bar

    @property
    def input(self) -> str:
        """What stands in the input, prompt included: the rows between the last reply and the bar."""
        rows = self.rows
        end = next((number for number, row in enumerate(rows) if " · ctx " in row), len(rows))
        start = max((number for number in range(end) if rows[number].startswith(">")), default=end)
        return "\n".join(rows[start:end])

    def send(self, text: str | bytes) -> None:
        """Type, reading meanwhile what the program draws, so that neither side waits for the other."""
        data = memoryview(text.encode() if isinstance(text, str) else text)
        descriptor = self._child.child_fd
        while data:
            _, writable, _ = select.select([descriptor], [descriptor], [], TIMEOUT)
            self._read(0)
            if writable:
                try:
                    data = data[os.write(descriptor, data[:4096]) :]
                except BlockingIOError:
                    continue

    def say(self, message: str) -> None:
        """Type a line and send it."""
        self.send(message + ENTER)

    def ask(self, message: str) -> None:
        """Send a message of one row, not sent before, and wait for its turn to end."""
        self.say(message)
        self.wait_for(lambda _: f"> {message}" in self.text and self.input == ">" and self.is_idle)

    def kill(self, number: int = signal.SIGINT) -> None:
        """Send the process a signal."""
        os.kill(self.pid, number)

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def wait_for(self, condition: "str | Callable[[Terminal], object]", timeout: float = TIMEOUT) -> None:
        """Wait until `condition` holds, or is in the text; AssertionError shows the screen if it never does."""
        holds = (lambda terminal: condition in terminal.text) if isinstance(condition, str) else condition
        deadline = time.monotonic() + timeout
        while not holds(self):
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                if left > 0 and holds(self):  # its last words
                    return
                raise AssertionError(f"not seen within {timeout:g} s: {condition!r}\n{self.text}")

    def wait_for_end(self) -> int:
        """Read until the program has gone; return its exit code."""
        deadline = time.monotonic() + TIMEOUT
        while self._read(deadline - time.monotonic()):
            pass
        self._child.wait()
        return self._child.exitstatus if self._child.exitstatus is not None else -self._child.signalstatus

    def _read(self, timeout: float) -> bool:
        """Take in what was written, waiting for it up to `timeout`; return whether there may come more."""
        descriptor = self._child.child_fd
        while select.select([descriptor], [], [], max(timeout, 0))[0]:
            try:
                data = os.read(descriptor, 65536)
            except OSError:  # Linux's end of file on a pseudo-terminal
                return False
            if not data:
                return False
            self.written += data
            self._stream.feed(data)
            timeout = 0
        return True
