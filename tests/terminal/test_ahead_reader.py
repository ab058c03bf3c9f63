"""When a draft is read before it is sent: a pause after the last key, never while something runs, never in the way."""

import threading
from collections.abc import Callable

import pytest

from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.errors import ContextOverflowError
from turbospark_chat.terminal.ahead_reader import PAUSE_SECONDS, AheadReader

TIMEOUT = 10.0


class Timers:
    """Calls to come, made when a test says that the time has passed."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> "Timers._Timer":
        entry = (seconds, call)
        self.waiting.append(entry)
        return Timers._Timer(self, entry)

    def pass_by(self) -> None:
        """Let the time of every call come."""
        waiting, self.waiting = self.waiting, []
        for seconds, call in waiting:
            assert seconds == PAUSE_SECONDS
            call()

    class _Timer:
        def __init__(self, timers: "Timers", entry: tuple[float, Callable[[], None]]) -> None:
            self._timers, self._entry = timers, entry

        def cancel(self) -> None:
            if self._entry in self._timers.waiting:
                self._timers.waiting.remove(self._entry)


class Session:
    """A session whose reading a test lets end, or which ends when it is cancelled."""

    def __init__(self) -> None:
        self.drafts: list[str] = []
        self.begun, self.may_end = threading.Semaphore(0), threading.Event()
        self.may_end.set()
        self.cancelled: list[str] = []
        self.error: Exception | None = None

    def read_ahead(self, draft: str, *, cancel: threading.Event) -> int:
        self.drafts.append(draft)
        self.begun.release()
        while not self.may_end.is_set():
            if cancel.wait(0.001):
                self.cancelled.append(draft)
                break
        if self.error is not None:
            raise self.error
        return 10 * len(self.drafts)


class Desk:
    """A reader with all it needs."""

    def __init__(self) -> None:
        self.session, self.timers, self.woken = Session(), Timers(), threading.Semaphore(0)
        self.is_allowed = True
        self.thread = ModelThread()
        self.reader = AheadReader(
            self.session,  # type: ignore[arg-type]
            self.thread,
            call_later=self.timers.call_later,
            is_allowed=lambda: self.is_allowed,
            wake=self.woken.release,
        )

    def wait_for_job(self) -> None:
        """Let the job under way end, and the reader see it."""
        assert self.woken.acquire(timeout=TIMEOUT)
        self.reader.look()

    def pause(self) -> None:
        self.timers.pass_by()


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.session.may_end.set()
    desk.thread.close()


def test_what_is_certain_before_anything_is_typed_is_read_at_once(desk):
    desk.reader.begin()
    desk.wait_for_job()
    assert (desk.session.drafts, desk.reader.n_tokens) == ([""], 10)


def test_a_draft_is_read_once_no_key_came_for_a_while(desk):
    for end in range(1, 6):
        desk.reader.watch("hello"[:end])
    assert desk.session.drafts == []
    assert len(desk.timers.waiting) == 1
    desk.pause()
    desk.wait_for_job()
    assert desk.session.drafts == ["hello"]


def test_of_a_command_nothing_is_read(desk):
    desk.reader.begin()
    desk.wait_for_job()
    desk.reader.watch("/undo 3")
    desk.pause()
    assert desk.session.drafts == [""]


def test_where_it_is_not_allowed_nothing_is_read(desk):
    desk.is_allowed = False
    desk.reader.begin()
    desk.reader.watch("hello")
    desk.pause()
    assert desk.session.drafts == []
    desk.is_allowed = True
    desk.reader.begin()
    desk.wait_for_job()
    assert desk.session.drafts == ["hello"]


def test_reading_stops_when_it_is_not_allowed_any_more_and_goes_on_when_it_is(desk):
    desk.session.may_end.clear()
    desk.reader.watch("hello")
    desk.pause()
    assert desk.session.begun.acquire(timeout=TIMEOUT)
    desk.is_allowed = False
    desk.reader.look()  # as when the memory grows short
    desk.wait_for_job()
    assert desk.session.cancelled == ["hello"]
    desk.session.may_end.set()
    desk.pause()
    desk.is_allowed = True
    desk.reader.look()
    desk.pause()
    desk.wait_for_job()
    assert desk.session.drafts == ["hello", "hello"]


def test_sending_stops_the_reading_and_waits_for_nothing(desk):
    desk.session.may_end.clear()
    desk.reader.watch("hello")
    desk.pause()
    assert desk.session.begun.acquire(timeout=TIMEOUT)
    desk.reader.stop()
    turn = desk.thread.submit(lambda cancel, report: "answered")
    assert turn.result() == "answered"
    assert desk.session.cancelled == ["hello"]
    assert desk.reader.n_tokens == 0


def test_a_draft_that_goes_on_lets_the_reading_go_on_and_one_that_changes_stops_it(desk):
    desk.session.may_end.clear()
    desk.reader.watch("hello")
    desk.pause()
    assert desk.session.begun.acquire(timeout=TIMEOUT)
    desk.reader.watch("hello wor")
    assert desk.session.cancelled == []
    desk.reader.watch("help")
    desk.wait_for_job()
    assert desk.session.cancelled == ["hello"]
    desk.session.may_end.set()
    desk.pause()
    desk.wait_for_job()
    assert desk.session.drafts == ["hello", "help"]


def test_what_is_typed_while_a_draft_is_read_is_read_after_it(desk):
    desk.session.may_end.clear()
    desk.reader.watch("hello")
    desk.pause()
    desk.reader.watch("hello world")
    desk.pause()  # too early: it still reads
    desk.session.may_end.set()
    desk.wait_for_job()
    desk.pause()
    desk.wait_for_job()
    assert desk.session.drafts == ["hello", "hello world"]


def test_a_draft_typed_during_a_reply_is_read_after_it(desk):
    desk.is_allowed = False
    desk.reader.stop()
    desk.reader.watch("next")
    desk.pause()
    desk.is_allowed = True
    desk.reader.begin()
    desk.wait_for_job()
    assert desk.session.drafts == ["next"]


def test_a_draft_that_is_back_from_a_stopped_turn_is_read_once_it_changes(desk):
    desk.reader.watch("hello")
    desk.reader.decline()
    desk.reader.begin()
    desk.wait_for_job()
    desk.pause()
    assert desk.session.drafts == [""]  # what comes before it
    desk.reader.watch("hello world")
    desk.pause()
    desk.wait_for_job()
    assert desk.session.drafts == ["", "hello world"]


def test_before_a_change_the_chunk_under_way_is_waited_for(desk):
    desk.session.may_end.clear()
    desk.reader.begin()
    assert desk.session.begun.acquire(timeout=TIMEOUT)
    desk.reader.finish()
    assert desk.session.cancelled == [""]


def test_what_goes_wrong_is_not_shown(desk):
    desk.session.error = ContextOverflowError(900, 1, 100, advice="none")
    desk.reader.begin()
    desk.wait_for_job()
    assert desk.reader.n_tokens == 0
    desk.session.error = None
    desk.reader.watch("shorter")
    desk.pause()
    desk.wait_for_job()
    assert desk.reader.n_tokens == 20
