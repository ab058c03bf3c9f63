"""Turns without a screen, one after another: what an interrupt does to them, and what a reader who has gone."""

import io
import json
import os
import signal

import pytest
from scripted_chat import make_producer, make_session

from turbospark_chat.chat.turn_result import ReplyText
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.errors import ContextOverflowError
from turbospark_chat.terminal import script
from turbospark_chat.terminal.script import ScriptRunner
from turbospark_chat.terminal.script_output import JsonOutput, Streams, TextOutput
from turbospark_chat.terminal.turn_record import TurnOrigin

ORIGIN = TurnOrigin("tiny", "numpy, float32")


class Script:
    """A runner that writes to strings, and a session to take its turns."""

    def __init__(self, session, *, kind=TextOutput, out=None, thread=None, **style):
        self.session = session
        self.out, self.err = out or io.StringIO(), io.StringIO()
        self._thread = thread or ModelThread()
        self.runner = ScriptRunner(self._thread, kind(Streams(self.out, self.err), **style))

    def run(self, *messages):
        return self.run_turns(self.turn(message) for message in messages)

    def run_turns(self, turns):
        try:
            return self.runner.run(iter(turns), ORIGIN)
        finally:
            self._thread.close()

    def turn(self, message, *, meddle=lambda event, cancel: None):
        """Return a turn; `meddle` sees each event on the model's thread, and the cancel flag."""

        def generate(cancel, on_event):
            def take(event):
                on_event(event)
                meddle(event, cancel)

            return self.session.send(message, cancel=cancel, on_event=take)

        return generate

    def interrupted_turn(self, message, *, after, n_times=1):
        """Return a turn in which SIGINT comes after so many tokens; the model waits until it has been served."""

        def interrupt(event, cancel):
            if isinstance(event, ReplyText) and event.n_tokens == after and not cancel.is_set():
                for _ in range(n_times):
                    os.kill(os.getpid(), signal.SIGINT)
                    assert cancel.wait(10)

        return self.turn(message, meddle=interrupt)


@pytest.fixture(autouse=True)
def interrupt_handler():
    """Every run puts back whoever served SIGINT before it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert after is before


def test_turns_run_in_order_and_each_is_written():  # T12, T16, T20
    chat = Script(make_session("one\ntwo", "", "Grüße 中"))
    assert chat.run("a", "b", "c") == 0
    assert (chat.out.getvalue(), chat.err.getvalue()) == ("one\ntwo\n\nGrüße 中\n", "")
    assert len(chat.session.conversation.turns) == 3


def test_every_turn_says_what_answered_it():
    chat = Script(make_session("<think>hm</think>yes", "no"), kind=JsonOutput)
    assert chat.run("a", "b") == 0
    first, second = map(json.loads, chat.out.getvalue().splitlines())
    assert first["model"] == second["model"] == "tiny"
    assert (first["reply"], first["reasoning"], second["reply"]) == ("yes", "hm", "no")
    assert second["reused_prefix_tokens"] > 0


def test_an_error_ends_the_run_where_it_stands_with_what_came_before_written():
    chat = Script(make_session("yes", "no", context_length=100))
    with pytest.raises(ContextOverflowError):
        chat.run("a", "m" * 200, "c")
    assert chat.out.getvalue() == "yes\n"


# Interrupts


def test_sigint_ends_the_turn_and_keeps_what_was_said():  # T6, H3
    chat = Script(make_session("Hello there", "next"))
    code = chat.run_turns([chat.interrupted_turn("a", after=5), chat.turn("b")])
    assert code == 130
    assert chat.out.getvalue() == "Hello\nnext\n"
    assert [turn.reply.complete for turn in chat.session.conversation.turns] == [False, True]


def test_sigint_in_json_mode_is_told_in_the_object():  # T6
    chat = Script(make_session("Hello there"), kind=JsonOutput)
    assert chat.run_turns([chat.interrupted_turn("a", after=5)]) == 130
    shown = json.loads(chat.out.getvalue())
    assert (shown["reply"], shown["reason"]) == ("Hello", "cancelled")


def test_two_sigints_within_a_second_end_the_program():  # H3
    chat = Script(make_session("Hello there", "next"))
    with pytest.raises(KeyboardInterrupt):
        chat.run_turns([chat.interrupted_turn("a", after=5, n_times=2), chat.turn("b")])
    assert chat.out.getvalue() == "Hello"


def test_a_sigint_in_each_of_two_slow_turns_ends_only_those(monkeypatch):
    monkeypatch.setattr(script, "SECOND_INTERRUPT_SECONDS", 0.0)
    chat = Script(make_session("Hello there", "Once upon"))
    assert chat.run_turns([chat.interrupted_turn("a", after=5), chat.interrupted_turn("b", after=4)]) == 130
    assert chat.out.getvalue() == "Hello\nOnce\n"


class InterruptedThread(ModelThread):
    """The signal comes when the work is queued, and whoever queued it does not know yet."""

    def submit(self, work, **more):
        job = super().submit(work, **more)
        os.kill(os.getpid(), signal.SIGINT)
        return job


def test_sigint_as_a_turn_begins_ends_the_turn():
    chat = Script(make_session("Hello there"), thread=InterruptedThread())
    wait = chat.turn("a")
    assert chat.run_turns([lambda cancel, on_event: cancel.wait(10) and wait(cancel, on_event)]) == 130
    assert chat.out.getvalue() == "\n"


def test_sigint_while_nothing_runs_ends_the_program():
    chat = Script(make_session("Hello"))

    def turns():
        yield chat.turn("a")
        os.kill(os.getpid(), signal.SIGINT)
        yield chat.turn("b")

    with pytest.raises(KeyboardInterrupt):
        chat.run_turns(turns())
    assert chat.out.getvalue() == "Hello\n"


# A reader who has gone


class Closed(io.StringIO):
    """A pipe whose reader leaves after so many writes."""

    def __init__(self, n_writes):
        super().__init__()
        self._n_writes = n_writes

    def write(self, text):
        self._n_writes -= 1
        if self._n_writes < 0:
            raise BrokenPipeError
        return super().write(text)


def test_when_the_reader_has_gone_the_model_stops():
    producer = make_producer("x" * 10_000, seconds_per_pass=0.001)
    chat = Script(make_session(producer=producer, context_length=20_000), out=Closed(5))
    flags = []
    with pytest.raises(BrokenPipeError):
        chat.run_turns([chat.turn("a", meddle=lambda event, cancel: flags.append(cancel))])
    assert flags[0].is_set()
    assert chat.out.getvalue() == "xxxxx"
    assert len(producer.fed) < 5_000


def test_when_the_reader_has_gone_before_a_turn_it_is_not_begun():
    chat = Script(make_session("a", "b"), out=Closed(2), separator="--\n")
    with pytest.raises(BrokenPipeError):
        chat.run("1", "2")
    assert [turn.reply.content for turn in chat.session.conversation.turns] == ["a"]
