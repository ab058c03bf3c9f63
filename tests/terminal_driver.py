"""Runs `ts` as its users do: in a pseudo-terminal with an emulated screen, or through pipes.

What a test waits for is a condition on what the program wrote, never a time.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pyte

TS = str(Path(sys.executable).with_name("ts"))
TIMEOUT = 60.0  # seconds until a condition is given up; only a wrong program gets there

ENTER, TAB, BACKSPACE, ESCAPE = "\r", "\t", "\x7f", "\x1b"
CTRL_C, CTRL_D, CTRL_J, CTRL_R = "\x03", "\x04", "\n", "\x12"
UP, LEFT, DELETE = "\x1b[A", "\x1b[D", "\x1b[3~"

GREEDY = ("--temperature", "0", "--seed", "1")
LETTERS = ("--logit-bias", "'abcdefgh':100")  # babble of these letters that only a limit ends


def environment(home: Path | None = None, /, **changes: str) -> dict[str, str]:
    """The environment of a child: the test's own, or that of a user whose home is `home`.

    One BLAS thread: two that have to share a busy core are ten times slower than one.
    """
    inherited = dict(os.environ)
    if home is not None:
        inherited = {name: value for name, value in inherited.items() if not name.startswith("XDG_")}
        inherited["HOME"] = str(home)
    emulated = {
        "TERM": "xterm-256color",
        "TMUX": "",
        "XTERM_VERSION": "XTerm",
    }  # pyte cuts rows off, as xterm does
    return {**inherited, **emulated, "OPENBLAS_NUM_THREADS": "1", **changes}


def paste(text: str) -> str:
    """What a terminal sends for a paste: newlines arrive as carriage returns."""
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


class NoInputError(LookupError):
    """A condition on the input does not hold of a picture that has none."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What a terminal shows: the rows that went off its top, and those on the screen."""

    scrollback: tuple[str, ...]
    rows: tuple[str, ...]
    is_whole: bool = True  # not caught while it was drawn, half of it old and half new

    @property
    def text(self) -> str:
        return "\n".join((*self.scrollback, *self.rows)).rstrip()

    @property
    def bar(self) -> str:
        """The status bar as one line; empty where there is none."""
        return " · ".join(row for row in self.rows[self._bar_start :] if row)

    @property
    def transcript(self) -> str:
        """Everything above the input."""
        return "\n".join((*self.scrollback, *self.rows[: self._input_start]))

    @property
    def input(self) -> str:
        """What is typed, without the prompt; NoInputError in a picture without a bar, where nobody can tell."""
        if not self.bar:
            raise NoInputError
        rows = self.rows[self._input_start : self._bar_start]
        return "\n".join(row[2:] for row in rows)

    @property
    def is_idle(self) -> bool:
        """Whether the bar is there and says that nothing runs."""
        return self.bar != "" and "Ctrl-C stops" not in self.bar and "· prefill ·" not in f"{self.bar} ·"

    @property
    def n_out(self) -> int:
        """The tokens of the reply, by the bar."""
        found = re.search(r"(\d+) out", self.bar)
        return int(found[1]) if found else 0

    @property
    def reused(self) -> tuple[int, int]:
        """The prompt tokens reused, of how many, by the bar."""
        found = re.search(r"reused (\d+)/(\d+)", self.bar)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def _bar_start(self) -> int:
        starts = (number for number, row in enumerate(self.rows) if " · ctx " in row)
        return next(starts, len(self.rows))

    @property
    def _input_start(self) -> int:
        """The row of the prompt, or the first one where that has scrolled away within a long input.

        Without a bar there is no input either: it is taken away for a moment whenever something is written above it,
        and the last message must not pass for the prompt then.
        """
        start = self._bar_start
        if start == len(self.rows):
            return start
        while start > 0 and (not self.rows[start - 1] or self.rows[start - 1].startswith(("  ", ">"))):
            start -= 1
            if self.rows[start].startswith(">"):
                break
        return start


_JOINERS = "\u200d\ufe0f"  # what joins two emoji, and what makes one of a sign
_FLAG_LETTERS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))  # two make a flag


class _Screen(pyte.Screen):
    """An emulated screen that keeps the text of the rows that go off its top.

    With fewer rows it keeps the cursor's, as terminals do; pyte would drop rows from its top while there are others.
    """

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.gone: list[str] = []

    def draw(self, data: str) -> None:
        """Keep what is joined in one cell; pyte would drop it, and all that follows."""
        if data.isascii():
            super().draw(data)
            return
        for character in data:
            column = max(self.cursor.x - 1, 0)
            row = self.buffer[self.cursor.y]
            column -= row[column].data == "" and column > 0  # the right half of a wide character
            cell = row[column]
            is_flag = character in _FLAG_LETTERS and cell.data in _FLAG_LETTERS
            if character in _JOINERS or cell.data.endswith(_JOINERS[0]) or is_flag:
                row[column] = cell._replace(data=cell.data + character)
            else:
                super().draw(character)

    def index(self) -> None:
        if self.cursor.y == self.lines - 1:
            self.gone.append(self.text(0))
        super().index()

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        lines = lines or self.lines
        n_gone = max(self.cursor.y - lines + 1, 0)
        self.gone += [self.text(row) for row in range(n_gone)]
        kept = [self.buffer[row] for row in range(n_gone, min(n_gone + lines, self.lines))]
        self.buffer.clear()
        self.buffer.update(enumerate(kept))
        self.cursor.y -= n_gone
        self.lines = lines
        super().resize(lines, columns)
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        self.dirty.update(range(lines))

    def text(self, row: int) -> str:
        """What is in a row; pyte's own `display` takes no joined characters."""
        return "".join(self.buffer[row][column].data for column in range(self.columns)).rstrip()


class Terminal:
    """`ts` in a pseudo-terminal. `shell` may redirect its streams; there `"$@"` is the command."""

    def __init__(
        self,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        rows: int = 24,
        columns: int = 100,
        shell: str = 'exec "$@"',
    ) -> None:
        self._screen = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""  # all that came to the terminal
        with warnings.catch_warnings():
            # Python warns of a fork beside numpy's threads; this child does nothing but execute another program.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = pexpect.spawn(
                "/bin/sh", ["-c", shell, "sh", TS, *map(str, arguments)],
                env=env or environment(), dimensions=(rows, columns), timeout=TIMEOUT,
            )  # fmt: skip
        self._child.ptyproc.delayafterclose = 0.0
        os.set_blocking(self._child.child_fd, False)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._child.isalive():
            # Closing alone would ask it to end, and look a tenth of a second later.
            self._child.kill(signal.SIGKILL)
            self._child.wait()
        self._child.close()

    @property
    def pid(self) -> int:
        """The process: `ts` itself, where `shell` only executes it."""
        return int(self._child.pid or 0)

    @property
    def picture(self) -> Picture:
        rows = tuple(map(self._screen.text, range(self._screen.lines)))
        return Picture(tuple(self._screen.gone), rows, is_whole=not self._screen.cursor.hidden)

    def type(self, keys: str) -> None:
        """Press keys; what is drawn meanwhile is read, so that neither side waits for the other."""
        data = memoryview(keys.encode())
        descriptor = self._child.child_fd
        while data:
            _, writable, _ = select.select([descriptor], [descriptor], [], TIMEOUT)
            self._read(0)
            if writable:
                try:
                    data = data[os.write(descriptor, data[:4096]) :]
                except BlockingIOError:
                    continue

    def say(self, line: str) -> None:
        """Type a line and send it."""
        self.type(line + ENTER)

    def ask(self, message: str) -> Picture:
        """Send a message of one row, not sent before, and wait for its turn to end."""
        self.say(message)
        return self.wait_for(lambda seen: f"> {message}" in seen.transcript and seen.is_idle)

    def begin(self, message: str, *, n_out: int = 3) -> Picture:
        """Send such a message and wait until its reply has begun."""
        self.say(message)
        return self.wait_for(
            lambda seen: f"> {message}" in seen.transcript and not seen.is_idle and seen.n_out >= n_out
        )

    def cook(self) -> None:
        """Set line mode and echo, as a shell does for itself once a program is stopped."""
        descriptor = self._child.child_fd
        attributes = termios.tcgetattr(descriptor)
        attributes[0] |= termios.ICRNL
        attributes[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(descriptor, termios.TCSANOW, attributes)

    def wait_for_raw_mode(self) -> None:
        """Wait until the program takes keys as they come: what is typed before is still the line's."""
        deadline = time.monotonic() + TIMEOUT
        while termios.tcgetattr(self._child.child_fd)[3] & termios.ISIG:
            assert time.monotonic() < deadline
            self.watch(0.005)

    def interrupt(self) -> None:
        """Send SIGINT, as `kill` does."""
        os.kill(self.pid, signal.SIGINT)

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def wait_for(self, condition: str | Callable[[Picture], object]) -> Picture:
        """Return the first whole picture that `condition` holds of, or contains it; AssertionError if none does."""

        def holds(seen: Picture) -> object:
            with contextlib.suppress(NoInputError):
                return seen.is_whole and (condition(seen) if callable(condition) else condition in seen.text)
            return False

        deadline = time.monotonic() + TIMEOUT
        while True:
            picture = self.picture
            if holds(picture):
                return picture
            if not self._read(deadline - time.monotonic()) and not holds(self.picture):
                last_rows = self.picture.text.split("\n")[-100:]
                raise AssertionError("\n".join([f"never seen: {condition!r}, but", *last_rows]))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that shows elsewhere."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, self.picture.text
            self.watch(0.001)

    def watch(self, seconds: float) -> Picture:
        """Let `seconds` pass and return what is there then."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._read(left):
            pass
        return self.picture

    def wait_for_end(self) -> int:
        """Read until the program has gone; return its exit code, negative for a signal."""
        deadline = time.monotonic() + TIMEOUT
        while self._read(deadline - time.monotonic()):
            pass
        assert time.monotonic() < deadline, self.picture.text
        self._child.wait()
        return -self._child.signalstatus if self._child.signalstatus else int(self._child.exitstatus or 0)

    def _read(self, timeout: float) -> bool:
        """Take in what was written, or wait for it; return whether there was any and may be more."""
        descriptor = self._child.child_fd
        if not select.select([descriptor], [], [], max(timeout, 0))[0]:
            return False
        data = b""
        try:
            while select.select([descriptor], [], [], 0)[0] and (piece := os.read(descriptor, 65536)):
                data += piece
        except OSError:  # on Linux a pseudo-terminal ends so
            pass
        self.written += data
        self._stream.feed(data)
        return data != b""


def open_chat(path: Path, *flags: str, rows: int = 24, columns: int = 100, **variables: str) -> Terminal:
    """Open a chat that takes the likeliest token, and wait until it may be typed into."""
    flags = ("chat", "-m", str(path), *GREEDY, *flags)
    chat = Terminal(*flags, env=environment(**variables), rows=rows, columns=columns)
    chat.wait_for(lambda seen: seen.is_idle and "/help" in seen.transcript)
    return chat


def leave(chat: Terminal) -> str:
    """Leave by Ctrl-D and return the transcript."""
    chat.type(CTRL_D)
    assert chat.wait_for_end() == 0
    return chat.picture.text


def run_ts(
    *arguments: str | Path, stdin: str | bytes = b"", env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """Run `ts` with pipes for all three streams, to its end."""
    return subprocess.run(
        [TS, *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        env=env or environment(),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )


def objects(stdout: str | bytes) -> list[dict[str, Any]]:
    """The JSON objects of `--json`, one a line."""
    return [json.loads(line) for line in stdout.splitlines()]


class Pipes:
    """`ts` between pipes, to talk to while it runs."""

    def __init__(self, *arguments: str | Path, env: dict[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [TS, *map(str, arguments)], stdin=pipe, stdout=pipe, stderr=pipe, env=env or environment()
        )

    def __enter__(self) -> "Pipes":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def read(self, n_bytes: int) -> bytes:
        """Wait until that much of the reply is there."""
        assert self.process.stdout is not None
        data = b""
        while len(data) < n_bytes:
            assert select.select([self.process.stdout], [], [], TIMEOUT)[0], data
            piece = os.read(self.process.stdout.fileno(), n_bytes - len(data))
            assert piece, data
            data += piece
        return data

    def read_line(self) -> bytes:
        """Wait for a whole line."""
        line = b""
        while not line.endswith(b"\n"):
            line += self.read(1)
        return line

    def has_more(self, seconds: float) -> bool:
        """Whether more of the reply comes within `seconds`."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that shows elsewhere."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.001)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> tuple[int, bytes, bytes]:
        """Close its stdin and wait; return the exit code and what else was on stdout and stderr."""
        if self.process.stdin is not None and self.process.stdin.closed:
            self.process.stdin = None  # or communicate would flush it
        out, err = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, out, err
