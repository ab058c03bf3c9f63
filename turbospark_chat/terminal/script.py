"""Turns without a screen, one after another, and what a signal does to them. Never waits for a key."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from turbospark_chat.chat.turn_result import TurnEvent, TurnEventSink, TurnResult
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.model_thread import Job, ModelThread
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.terminal.script_output import ScriptOutput
from turbospark_chat.terminal.turn_record import TurnOrigin

EXIT_CANCELLED = 130
SECOND_INTERRUPT_SECONDS = 1.0  # two within this time end the program, not only the turn

Generate = Callable[[CancelFlag, TurnEventSink], Any]


class ScriptRunner:
    """Runs turns and hands on what they report.

    SIGINT ends the turn under way, and its part of the reply is written and kept; a second one within a second,
    or one while nothing runs, ends the program by KeyboardInterrupt. Whatever ends the run cancels the turn.
    """

    def __init__(self, thread: ModelThread, output: ScriptOutput) -> None:
        self._thread, self._output = thread, output
        self._cancel: threading.Event | None = None  # of the work under way
        self._interrupted_at = -SECOND_INTERRUPT_SECONDS
        self.was_cancelled = False

    def run(self, turns: Iterator[Generate], origin: TurnOrigin) -> int:
        """Run every turn and return the exit code: 130 if one was cancelled. An error ends it where it stands."""
        with self.interrupts():
            for generate in turns:
                self._output.end_turn(self.take_turn(generate), origin)
        return EXIT_CANCELLED if self.was_cancelled else 0

    def take_turn(self, generate: Generate) -> Any:
        """Do one thing on the model's thread, hand on what it reports, and return what came of it."""
        self._output.begin_turn()
        # Of our own, and before there is a job: it may be interrupted as soon as it is queued.
        cancel = self._cancel = threading.Event()
        try:
            job: Job[TurnEvent, Any] = self._thread.submit(lambda _, sink: generate(cancel, sink))
            for event in job.events():
                self._output.take(event)
            result = job.result()
        except BaseException:
            cancel.set()
            raise
        finally:
            self._output.stop_turn()
            self._cancel = None
        if isinstance(result, TurnResult):
            self.was_cancelled |= result.raw.reason is StopReason.CANCELLED
        return result

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Answer SIGINT while the block runs."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_second = now - self._interrupted_at < SECOND_INTERRUPT_SECONDS
        self._interrupted_at = now
        if self._cancel is None or is_second:
            raise KeyboardInterrupt
        self._cancel.set()
