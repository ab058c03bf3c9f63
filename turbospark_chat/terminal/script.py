"""The chat without a screen: one-shot completions and piped turns. Replies on stdout, everything else on stderr.

Never waits for a key and writes no escape code.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, TextIO

from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnEventSink, TurnResult
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.model_thread import Job, ModelThread
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.progress_line import PrefillLine
from turbospark_chat.terminal.turn_record import turn_record

EXIT_CANCELLED = 130
SECOND_INTERRUPT_SECONDS = 1.0  # two within this time end the program, not only the turn

Generate = Callable[[CancelFlag, TurnEventSink], TurnResult]


@dataclass(frozen=True, slots=True)
class ScriptStyle:
    """What goes out: reply text or JSON objects; `is_quiet` leaves stderr to errors."""

    model_name: str
    arithmetic: str = ""  # what computes
    is_json: bool = False
    is_quiet: bool = False


def read_lines(stream: BinaryIO, *, prompt: str, prompt_stream: TextIO) -> Iterator[str]:
    """Yield the lines that hold anything, as text; bytes that are no UTF-8 become U+FFFD, a byte order mark goes.

    `prompt` is written to `prompt_stream` before each line, for a person at a terminal without a screen.
    """
    while True:
        prompt_stream.write(prompt)
        prompt_stream.flush()
        raw = stream.readline()
        if not raw:
            prompt_stream.write("\n" if prompt else "")
            return
        line = raw.decode("utf-8-sig", "replace").rstrip("\r\n")
        if line.strip():
            yield line


class ScriptRunner:
    """Runs turns one after another and writes them out.

    SIGINT ends the turn under way, and its part of the reply is written and kept; a second one within a second,
    or one while nothing runs, ends the program by KeyboardInterrupt. Whatever ends the run cancels the turn.
    """

    def __init__(self, thread: ModelThread, style: ScriptStyle, *, out: TextIO, err: TextIO) -> None:
        self._thread, self._style, self._out, self._err = thread, style, out, err
        self._job: Job[TurnEvent, TurnResult] | None = None
        self._interrupted_at = -SECOND_INTERRUPT_SECONDS
        self._was_cancelled = False
        self._in_reasoning = False

    def run(self, turns: Iterator[Generate]) -> int:
        """Run every turn and return the exit code: 130 if one was cancelled. An error ends it where it stands."""
        with self._interrupts():
            for generate in turns:
                self._run_turn(generate)
        return EXIT_CANCELLED if self._was_cancelled else 0

    def _run_turn(self, generate: Generate) -> None:
        job = self._job = self._thread.submit(generate)
        line = None if self._style.is_quiet else PrefillLine(self._err, clock=time.monotonic)
        try:
            for event in job.events():
                self._take(event, line)
            result = job.result()
        except BaseException:
            job.cancel()
            raise
        finally:
            if line is not None:
                line.clear()
            self._job = None
        self._end_turn(result)

    def _end_turn(self, result: TurnResult) -> None:
        self._end_reasoning()
        self._was_cancelled |= result.raw.reason is StopReason.CANCELLED
        if self._style.is_json:
            self._write(
                self._out,
                turn_record(result, model=self._style.model_name, arithmetic=self._style.arithmetic) + "\n",
            )
            return
        self._write(self._out, "\n")
        if result.raw.reason is StopReason.MAX_TOKENS and not self._style.is_quiet:
            self._write(self._err, f"[reached the limit of {result.raw.new_tokens} tokens: max_tokens]\n")

    def _take(self, event: TurnEvent, line: PrefillLine | None) -> None:
        if isinstance(event, Prefill):
            if line is not None:
                line.show(event)
            return
        if line is not None:
            line.clear()
        if isinstance(event, ReplyText):
            if event.text and not self._style.is_json:
                self._write_text(event)
        elif not self._style.is_quiet:
            self._write(self._err, f"{event}\n")

    def _write_text(self, event: ReplyText) -> None:
        if not event.is_reasoning:
            self._end_reasoning()
            self._write(self._out, event.text)
        elif not self._style.is_quiet:
            self._in_reasoning = True
            self._write(self._err, event.text)

    def _end_reasoning(self) -> None:
        """Give the thinking on stderr the newline that its text lacks."""
        if self._in_reasoning:
            self._in_reasoning = False
            self._write(self._err, "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        """Write text at once: as it is to a file or a pipe, made harmless to a terminal."""
        stream.write(harmless(text) if stream.isatty() else text)
        stream.flush()

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_second = now - self._interrupted_at < SECOND_INTERRUPT_SECONDS
        self._interrupted_at = now
        if self._job is None or is_second:
            raise KeyboardInterrupt
        self._job.cancel()
