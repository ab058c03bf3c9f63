"""The one thread that may run the model, and the job another thread follows: a cancel flag and a queue of events."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")
Event = TypeVar("Event")
Work = Callable[[threading.Event, Callable[[Event], None]], Result]


class Job(Generic[Event, Result]):
    """Work under way on the model's thread, seen from another."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._cancel = threading.Event()
        self._finished = threading.Event()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # None is the last, and stays
        self._wake = wake
        self._result: Result | None = None
        self._error: BaseException | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the work has ended; events may still wait."""
        return self._finished.is_set()

    def cancel(self) -> None:
        """Ask the work to stop; it ends by itself within a step."""
        self._cancel.set()

    def wait(self) -> None:
        """Wait for the end, whatever came of the work."""
        self._finished.wait()

    def drain(self) -> list[Event]:
        """Return the events that wait, without waiting for more."""
        events: list[Event] = []
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return events
            if event is None:
                self._events.put(None)
                return events
            events.append(event)

    def events(self) -> Iterator[Event]:
        """Yield every event as it comes, until the work has ended. Signals are served while waiting."""
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)

    def result(self) -> Result:
        """Wait for the end and return what the work returned, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set before _finished unless _error is

    def run(self, work: "Work[Event, Result]") -> None:
        """Do the work; the model's thread calls this."""
        try:
            self._result = work(self._cancel, self._report)
        except BaseException as error:  # handed to whoever asks for the result
            self._error = error
        self._finished.set()
        self._events.put(None)
        with suppress(Exception):  # a listener that has left must not end the thread
            self._wake()

    def _report(self, event: Event) -> None:
        self._events.put(event)
        self._wake()


class ModelThread:
    """Runs jobs one after another on one thread, so no two forward passes overlap."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="model", daemon=True)
        self._thread.start()

    def submit(
        self, work: "Work[Event, Result]", *, wake: Callable[[], None] = lambda: None
    ) -> Job[Event, Result]:
        """Queue work and return its job. `wake` is called on the model's thread after each event and at the end.

        Raises:
            RuntimeError: the thread does not run: it was closed, or this is a forked child.
        """
        if not self._thread.is_alive():
            raise RuntimeError("the model's thread has ended: work for it would never be done")
        job: Job[Event, Result] = Job(wake)
        self._jobs.put(lambda: job.run(work))
        return job

    @property
    def has_ended(self) -> bool:
        """Whether it runs nothing and never will again."""
        return not self._thread.is_alive()

    def close(self, *, timeout: float = 5.0) -> None:
        """Let queued jobs end and stop the thread; cancel a running job first, or this waits for it."""
        self._jobs.put(None)
        self._thread.join(timeout)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
