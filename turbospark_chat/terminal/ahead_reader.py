"""Has the model read the draft while it is typed: when to begin, and to stop the moment something is asked of it.

Knows neither ids nor what is certain of a draft. Nothing that goes wrong here is shown: the turn itself will say it.
"""

from collections.abc import Callable
from typing import Final, Protocol

from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.engine.model_thread import Job, ModelThread

PAUSE_SECONDS: Final = 0.3  # without a key, before a draft is read: while keys come, it is about to change


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Do not call."""


class AheadReader:
    """Gives the model's thread what is certain of the next prompt whenever nothing else runs.

    All methods belong to the screen's thread. `call_later` calls on it after so many seconds; `is_allowed` is asked
    before each beginning; `wake` is called on the model's thread once a job has ended.
    """

    def __init__(
        self,
        session: ChatSession,
        thread: ModelThread,
        *,
        call_later: Callable[[float, Callable[[], None]], Timer],
        is_allowed: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._session, self._thread, self._wake = session, thread, wake
        self._call_later, self._is_allowed = call_later, is_allowed
        self._draft = ""
        self._declined: str | None = None  # a draft that is not to be read as it is
        # The draft that was read, or is being read; None where it is to be read again.
        self._read: str | None = None
        self._job: Job[None, int] | None = None
        self._timer: Timer | None = None
        self.n_tokens = 0  # read ahead for the next turn, as far as is known

    def watch(self, draft: str) -> None:
        """Take note of what is typed. A command is no message, so only what comes before one is read."""
        draft = "" if draft.startswith("/") else draft
        if draft != self._declined:
            self._declined = None
        if draft == self._draft:
            return
        self._draft = draft
        if self._job is not None and not draft.startswith(self._read or ""):
            self._job.cancel()  # it reads what is no longer there
        self._plan()

    def decline(self) -> None:
        """Do not read what is typed now until it changes: it is back from a turn that was stopped or failed."""
        self._declined = self._draft

    def begin(self) -> None:
        """Read what is there now, at once: the model has nothing else to do."""
        self._read = None
        self._start()

    def look(self) -> None:
        """Take note of a job that has ended, and of what is allowed by now; go on with what is not read yet."""
        if self._job is not None and not self._job.is_finished:
            if not self._is_allowed():
                self._job.cancel()
                self._read = None  # so that it is read again once it is allowed
            return
        if self._job is None:
            if self._timer is None and self._read != self._wanted:
                self._plan()
            return
        job, self._job = self._job, None
        try:
            self.n_tokens = job.result()
        except Exception:  # such as a draft too long, or a template that refuses it: sending it says so
            self.n_tokens = 0
        if self._read != self._wanted:
            self._plan()

    def stop(self) -> None:
        """Read no further: what is to run next need not wait for more than a chunk."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.n_tokens = None, 0
        if self._job is not None:
            self._job.cancel()
            self._job = None
        self._read = None

    def finish(self) -> None:
        """Stop, and wait for the chunk under way: what comes changes what it works on."""
        job = self._job
        self.stop()
        if job is not None:
            job.wait()

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(PAUSE_SECONDS, self._start)

    @property
    def _wanted(self) -> str:
        """What is to be read of the draft."""
        return "" if self._draft == self._declined else self._draft

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        draft, session = self._wanted, self._session
        if self._job is not None or draft == self._read or not self._is_allowed():
            return
        self._read = draft
        self._job = self._thread.submit(
            lambda cancel, report: session.read_ahead(draft, cancel=cancel), wake=self._wake
        )
