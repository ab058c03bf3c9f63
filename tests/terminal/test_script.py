"""The chat without a screen: what goes to stdout, what to stderr, and what an interrupt does."""

import io
import json
import os
import signal

import pytest
from scripted_chat import make_producer, make_session

from turbospark_chat.chat.turn_result import ReplyText
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.errors import ContextOverflowError
from turbospark_chat.terminal import progress_line, script
from turbospark_chat.terminal.script import ScriptRunner, ScriptStyle, read_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Script:
    """A runner over string streams, and a session to take its turns."""

    def __init__(self, session, *, out=None, err=None, **style):
        self.session = session
        self.out, self.err = out or io.StringIO(), err or io.StringIO()
        self._thread = ModelThread()
        self.runner = ScriptRunner(self._thread, ScriptStyle("tiny", **style), out=self.out, err=self.err)

    def run(self, *messages):
        return self.run_turns(self.turn(message) for message in messages)

    def run_turns(self, turns):
        try:
            return self.runner.run(iter(turns))
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


# What goes where


def test_replies_go_to_stdout_and_nothing_else_does():  # T12, T16, T20
    chat = Script(make_session("one\ntwo", "", "Grüße 中"))
    assert chat.run("a", "b", "c") == 0
    assert (chat.out.getvalue(), chat.err.getvalue()) == ("one\ntwo\n\nGrüße 中\n", "")
    assert len(chat.session.conversation.turns) == 3


def test_thinking_goes_to_stderr_on_lines_of_its_own():  # T25
    chat = Script(make_session("<think>hm\nhm</think>yes", "<think>so</think>no"))
    chat.run("a", "b")
    assert (chat.out.getvalue(), chat.err.getvalue()) == ("yes\nno\n", "hm\nhm\nso\n")


def test_a_thought_that_never_ends_still_ends_its_line():
    chat = Script(make_session("<think>hm hm hm"))
    chat.session.set_option("max_tokens", "9")
    chat.run("a")
    assert chat.out.getvalue() == "\n"
    assert chat.err.getvalue() == "hm\n[reached the limit of 9 tokens: max_tokens]\n"


@pytest.mark.parametrize(
    ("is_quiet", "err"),
    [
        (False, "hm\n1 exchange dropped from the prompt to fit the context (171 tokens)\n"
                "[reached the limit of 3 tokens: max_tokens]\n"),
        (True, ""),
    ],
)  # fmt: skip
def test_stderr_gets_notices_unless_it_is_to_be_quiet(is_quiet, err):  # T24, T63, T69
    chat = Script(
        make_session("<think>hm</think>" + "x" * 100, "abcdef", context_length=256), is_quiet=is_quiet
    )

    def turns():
        yield chat.turn("m" * 50)
        chat.session.set_option("max_tokens", "3")
        yield chat.turn("m" * 100)

    assert chat.run_turns(turns()) == 0
    assert (chat.out.getvalue(), chat.err.getvalue()) == ("x" * 100 + "\nabc\n", err)


def test_json_is_one_object_a_turn_and_has_the_thinking():  # T6
    chat = Script(make_session("<think>hm</think>yes", "no"), arithmetic="numpy, float32", is_json=True)
    assert chat.run("a", "b") == 0
    first, second = map(json.loads, chat.out.getvalue().splitlines())
    assert first["arithmetic"] == second["arithmetic"] == "numpy, float32"
    assert (first["model"], first["reply"], first["reasoning"], second["reply"]) == (
        "tiny",
        "yes",
        "hm",
        "no",
    )
    assert second["reused_prefix_tokens"] > 0
    assert chat.err.getvalue() == ""


def test_a_pipe_gets_the_bytes_of_the_reply_and_a_terminal_none_it_would_obey():  # T18
    reply = "\x1b[2Jred\x9b\r\n"
    for out, shown in [(io.StringIO(), reply), (Terminal(), "\ufffd[2Jred\ufffd\n")]:
        chat = Script(make_session(reply), out=out)
        chat.run("a")
        assert chat.out.getvalue() == shown + "\n"


@pytest.mark.parametrize(
    ("err", "is_quiet", "is_shown"),
    [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)],
    ids=["terminal", "quiet", "file"],
)
def test_a_long_prefill_shows_how_far_it_is_and_is_gone_before_the_reply(
    monkeypatch, err, is_quiet, is_shown
):  # T78
    monkeypatch.setattr(progress_line, "QUIET_SECONDS", 0.0)
    chat = Script(make_session("<think>hm</think>yes"), err=err(), is_quiet=is_quiet)
    chat.run("m" * 150)
    *drawn, last = chat.err.getvalue().split("\r")
    assert last == ("" if is_quiet else "hm\n")
    assert [part.split(",")[0] for part in drawn if part.strip()] == (
        ["prefill 64/169", "prefill 128/169"] if is_shown else []
    )


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
    chat = Script(make_session("Hello there"), is_json=True)
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


def test_sigint_while_nothing_runs_ends_the_program():
    chat = Script(make_session("Hello"))

    def turns():
        yield chat.turn("a")
        os.kill(os.getpid(), signal.SIGINT)
        yield chat.turn("b")

    with pytest.raises(KeyboardInterrupt):
        chat.run_turns(turns())
    assert chat.out.getvalue() == "Hello\n"


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


# Reading lines


def lines_of(data, *, prompt=""):
    prompts = io.StringIO()
    return list(read_lines(io.BytesIO(data), prompt=prompt, prompt_stream=prompts)), prompts.getvalue()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"", [], id="H5-nothing"),
        pytest.param(b"hi", ["hi"], id="H5-no-last-newline"),
        pytest.param(b"one\ntwo\n", ["one", "two"], id="T16-each-line-is-one"),
        pytest.param(b"one\r\ntwo\r\n", ["one", "two"], id="carriage-returns"),
        pytest.param(b"\n  \n\t\r\none\n\n", ["one"], id="H5-empty-lines-are-no-end"),
        pytest.param(b"  one \n", ["  one "], id="spaces-stay"),
        pytest.param(b"caf\xe9 \xff\n\xf0\x9f\n", ["caf\ufffd \ufffd", "\ufffd"], id="T45-no-utf8"),
        pytest.param("中\u2028文\x85\n".encode(), ["中\u2028文\x85"], id="other-separators-stay"),
        pytest.param(b"/help\n/exit\n", ["/help", "/exit"], id="commands-are-messages"),
        pytest.param(b"x" * 1_000_000, ["x" * 1_000_000], id="H13-megabyte"),
    ],
)
def test_lines_become_messages(data, lines):
    assert lines_of(data) == (lines, "")


@pytest.mark.parametrize(("data", "prompts"), [(b"", "> \n"), (b"one\n\ntwo\n", "> > > > \n")])
def test_a_person_is_prompted_for_each_line_and_the_end_ends_the_row(data, prompts):  # T11, H5
    assert lines_of(data, prompt="> ")[1] == prompts
