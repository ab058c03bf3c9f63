"""The model's thread and its jobs, seen from another thread: order, events, cancel, errors, signals, the end."""

import multiprocessing
import signal
import threading
import time
import warnings

import pytest

from turbospark_chat.engine.model_thread import ModelThread

TIMEOUT = 10.0  # seconds until a test that hangs fails


@pytest.fixture
def thread():
    thread = ModelThread()
    yield thread
    thread.close(timeout=TIMEOUT)


def count_to(n):
    """Return work that reports 1 to n and returns n."""

    def work(cancel, report):
        for number in range(1, n + 1):
            report(number)
        return n

    return work


def until_cancelled(cancel, report):
    report("begun")
    assert cancel.wait(TIMEOUT)
    return "cancelled"


def in_time(call):
    """Return what `call` answers; fail where it would wait for ever."""
    answers = []
    watcher = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    watcher.start()
    watcher.join(TIMEOUT)
    assert answers, "it waits for ever"
    return answers[0]


def result_in_time(job):
    """Return the job's result, or raise its error, without waiting for ever."""
    deadline = time.monotonic() + TIMEOUT
    while not job.is_finished:
        assert time.monotonic() < deadline, "it never ends"
        time.sleep(0.001)
    return job.result()


def test_every_job_runs_on_one_thread_which_is_not_the_callers(thread):
    jobs = [thread.submit(lambda cancel, report: threading.get_ident()) for _ in range(20)]
    idents = {job.result() for job in jobs}
    assert len(idents) == 1
    assert threading.get_ident() not in idents


def test_jobs_run_one_at_a_time_in_the_order_they_came(thread):
    log = []

    def work(name):
        def run(cancel, report):
            log.append((name, "begins"))
            time.sleep(0.002)
            log.append((name, "ends"))

        return run

    jobs = [thread.submit(work(name)) for name in range(5)]
    for job in reversed(jobs):
        job.result()
    assert log == [(name, what) for name in range(5) for what in ("begins", "ends")]


def test_events_come_in_order_and_end_with_the_work(thread):
    job = thread.submit(count_to(100))
    assert list(job.events()) == list(range(1, 101))
    assert job.is_finished
    assert job.result() == 100


def test_what_ended_ends_again_for_whoever_asks_again(thread):
    job = thread.submit(count_to(3))
    assert list(job.events()) == [1, 2, 3]
    assert in_time(lambda: (list(job.events()), job.drain(), list(job.events()))) == ([], [], [])


def test_draining_to_the_end_leaves_events_an_end(thread):
    job = thread.submit(count_to(3))
    job.result()
    assert job.drain() == [1, 2, 3]
    assert in_time(lambda: list(job.events())) == []


def test_drain_does_not_wait(thread):
    job = thread.submit(until_cancelled)
    next(job.events())
    assert job.drain() == []
    assert not job.is_finished
    job.cancel()
    assert job.result() == "cancelled"


def test_no_event_is_lost_between_looking_and_draining(thread):
    for _ in range(50):
        job, seen = thread.submit(count_to(20)), []
        is_finished = False
        while not is_finished:
            is_finished = job.is_finished  # first: what was reported before the end is in the queue by then
            seen += job.drain()
        assert seen == list(range(1, 21))


def test_cancel_reaches_the_work_and_only_its_own(thread):
    first, second = thread.submit(until_cancelled), thread.submit(until_cancelled)
    next(first.events())
    first.cancel()
    assert first.result() == "cancelled"
    next(second.events())
    assert not second.is_finished
    second.cancel()
    assert second.result() == "cancelled"


def test_a_job_cancelled_before_its_turn_sees_it_at_once(thread):
    first = thread.submit(until_cancelled)
    second = thread.submit(lambda cancel, report: cancel.is_set())
    second.cancel()
    first.cancel()
    assert second.result() is True


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_is_handed_over_and_the_thread_goes_on(thread, error):
    def work(cancel, report):
        report("before")
        raise error

    job = thread.submit(work)
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            result_in_time(job)
        assert caught.value is error
    assert list(job.events()) == ["before"]
    assert result_in_time(thread.submit(count_to(1))) == 1


def test_wake_is_called_after_each_event_and_at_the_end(thread):
    seen = []

    def wake():
        seen.append((threading.current_thread().name, job.is_finished, job.drain()))

    gate = threading.Event()
    job = thread.submit(lambda cancel, report: gate.wait(TIMEOUT) and count_to(2)(cancel, report), wake=wake)
    gate.set()
    job.result()
    thread.submit(count_to(0)).result()  # the last wake comes after the result
    assert seen == [("model", False, [1]), ("model", False, [2]), ("model", True, [])]


def test_a_listener_that_has_left_ends_its_job_but_not_the_thread(thread):
    def wake():
        raise RuntimeError("Event loop is closed")

    job = thread.submit(count_to(3), wake=wake)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        result_in_time(job)
    assert list(job.events()) == [1]
    silent = thread.submit(count_to(0), wake=wake)
    assert result_in_time(silent) == 0
    assert result_in_time(thread.submit(count_to(1))) == 1


def test_close_lets_queued_jobs_end():
    thread = ModelThread()
    jobs = [thread.submit(count_to(n)) for n in range(3)]
    thread.close(timeout=TIMEOUT)
    assert [job.is_finished for job in jobs] == [True] * 3


def test_close_does_not_wait_for_ever():
    thread = ModelThread()
    job = thread.submit(until_cancelled)
    thread.close(timeout=0.01)
    assert not job.is_finished
    job.cancel()
    assert job.result() == "cancelled"


def test_work_for_a_closed_thread_is_refused_instead_of_waiting_for_ever():
    thread = ModelThread()
    thread.close(timeout=TIMEOUT)
    with pytest.raises(RuntimeError, match="the model's thread has ended"):
        thread.submit(count_to(1))


def _submit_in_child(thread, answers):
    try:
        thread.submit(count_to(1))
    except RuntimeError as error:
        answers.put(str(error))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_work_in_a_forked_child_is_refused(thread):  # F21
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_submit_in_child, args=(thread, answers))
    with warnings.catch_warnings(action="ignore"):  # newer Pythons warn of any fork beside threads
        child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
    assert "has ended" in answers.get()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer here")
@pytest.mark.parametrize("wait", ["events", "result"])
def test_a_signal_is_served_while_waiting(thread, wait):  # H2, H3
    job = thread.submit(until_cancelled)
    next(job.events())

    def cancel(number, frame):
        job.cancel()

    previous = signal.signal(signal.SIGALRM, cancel)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        began = time.monotonic()
        if wait == "events":
            assert list(job.events()) == []
        assert job.result() == "cancelled"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - began < TIMEOUT / 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer here")
def test_an_interrupt_that_raises_leaves_the_job_to_be_followed_again(thread):  # H3
    job = thread.submit(until_cancelled)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            for event in job.events():
                assert event == "begun"
                signal.setitimer(signal.ITIMER_REAL, 0.02)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert not job.is_finished
    job.cancel()
    assert list(job.events()) == []
    assert job.result() == "cancelled"
