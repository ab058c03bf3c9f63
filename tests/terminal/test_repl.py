"""The chat as a transcript: keystrokes in, the terminal's rows and the stored conversation out."""

import io
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from command_context import FakeModels
from painted_terminal import painted_terminal
from scripted_chat import PacedProducer, make_producer, make_session

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.transcript import Transcript, TranscriptTurn
from turbospark_chat.chat.transcript_file import write_transcript
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.errors import TemplateError
from turbospark_chat.settings import Locations
from turbospark_chat.terminal import repl, turn_desk, turn_view
from turbospark_chat.terminal.ahead_reader import PAUSE_SECONDS
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.display import Display
from turbospark_chat.terminal.interface_options import Thinking
from turbospark_chat.terminal.totals import Totals
from turbospark_chat.terminal.vitals import Vitals, VitalsMonitor

ENTER, CTRL_A, CTRL_C, CTRL_D, CTRL_J, BACKSPACE, UP = "\r", "\x01", "\x03", "\x04", "\n", "\x7f", "\x1b[A"
RETRYING = "answering again: nothing is computed again"
GREETING = "tiny, context 4096 tokens; /help lists commands"
SLOW = 0.002  # seconds a forward pass: slow enough to meddle with a reply


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


class Chat:
    """A chat at a painted terminal, run on a thread of its own until it is left."""

    def __init__(self, terminal, session, folder, *, is_markdown=False, thinking=Thinking.SHOW, **settings):
        self.terminal, self.session = terminal, session
        self.archive = ConversationArchive(lambda: Store.open(folder / "conversations.db"))
        self.repl = repl.Repl(
            session,
            ModelThread(),
            archive=self.archive,
            models=FakeModels(session.model),
            locations=replace(Locations.of_user(), history_file=folder / "history"),
            output=terminal.output,
            display=Display(Painter(color=False), is_markdown=is_markdown, thinking=thinking),
            probe=None,
            **settings,
        )
        self.result = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self.result = self.repl.run()
        except Exception as error:
            self.result = error
        self.archive.close()

    def start(self):
        self._thread.start()
        self.wait_for("tiny · ctx")

    def end(self):
        """Wait until the chat has been left; what the terminal shows then is the transcript."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.terminal.rows

    def leave(self):
        """Leave by Ctrl-D, what is typed taken away; return the transcript."""
        if self._thread.is_alive():
            self.wait_for(lambda: self.is_idle)
            self.type(CTRL_C + CTRL_D if self.input else CTRL_D)
        return self.end()

    def type(self, keys):
        self.terminal.type(keys)

    def say(self, line):
        """Type a line of one row, not said before, send it and wait until what it started has ended."""
        self.type(line + ENTER)
        self.wait_for(f"> {line}".rstrip())
        self.wait_for(lambda: self.is_idle)

    def begin(self, line, *, until):
        """Send a line and wait until its reply shows `until`."""
        self.type(line + ENTER)
        self.wait_for(until)

    def wait_for(self, condition):
        self.terminal.wait_for(condition)

    @property
    def above(self):
        """The rows above the input, and a live one."""
        rows = self.terminal.rows
        return rows[: self._input_rows(rows).start]

    @property
    def input(self):
        """What is typed, without the prompt."""
        rows = self.terminal.rows
        return "\n".join(rows[number][2:] for number in self._input_rows(rows))

    @property
    def bar(self):
        rows = self.terminal.rows
        return " · ".join(rows[self._input_rows(rows).stop :])

    @property
    def is_idle(self):
        bar = f"{self.bar} ·"
        return "Ctrl-C stops" not in bar and "· prefill ·" not in bar and "tiny · ctx" in bar

    @staticmethod
    def _input_rows(rows):
        end = next((number for number, row in enumerate(rows) if row.startswith("tiny · ctx")), len(rows))
        start = end - 1
        while start > 0 and rows[start].startswith("  "):
            start -= 1
        return range(start, end)

    @property
    def messages(self):
        """The stored conversation once nothing runs: each turn's message and reply, one cut short with a mark."""
        self.wait_for(lambda: self.is_idle or not self._thread.is_alive())
        return [
            (turn.user.content, turn.reply.content + ("" if turn.reply.complete else " [...]"))
            for turn in self.session.conversation.turns
        ]


@pytest.fixture
def open_chat(tmp_path, monkeypatch):
    """Open chats over a session, or over one that says the replies given."""
    monkeypatch.setattr(turn_desk, "FRAME_SECONDS", 0.002)  # nobody watches

    @contextmanager
    def open_chat(
        *replies, session=None, seconds_per_pass=0.0, context_length=4096, rows=40, columns=100, **settings
    ):
        producer = make_producer(*replies, seconds_per_pass=seconds_per_pass)
        session = session or make_session(producer=producer, context_length=context_length)
        with painted_terminal(rows=rows, columns=columns) as terminal:
            chat = Chat(terminal, session, tmp_path, **settings)
            chat.producer = producer
            chat.start()
            try:
                yield chat
                chat.leave()
            finally:
                chat.type(CTRL_C * 3 + CTRL_D)  # whatever a failed test left behind
                chat.end()
        terminal.wait_for(lambda: not {"model", "vitals"} & {thread.name for thread in threading.enumerate()})

    return open_chat


# Messages and commands


@pytest.mark.parametrize(
    ("replies", "lines", "transcript", "messages"),
    [
        pytest.param(
            ["Hello!", "Fine,\nthanks."],
            ["hi", "how are you?"],
            ["> hi", "Hello!", "", "> how are you?", "Fine,", "thanks."],
            [("hi", "Hello!"), ("how are you?", "Fine,\nthanks.")],
            id="two turns",
        ),
        pytest.param(
            ["a", "b", "c"],
            ["help", " /help", "either/"],
            ["> help", "a", "", ">  /help", "b", "", "> either/", "c"],
            [("help", "a"), (" /help", "b"), ("either/", "c")],
            id="messages that look like commands",
        ),
        pytest.param(
            ["a", "b"],
            ["one", "two", "/undo", "/history"],
            ["> one", "a", "", "> two", "b", "", "> /undo", "taking back 1 turn: nothing is computed again", "",
             "> /history", "1 user: one", "1 assistant: a"],
            [("one", "a")],
            id="undo",
        ),
        pytest.param(
            ["a", "b"],
            ["one", "/retry"],
            ["> one", "a", "", "> /retry", RETRYING, "b"],
            [("one", "b")],
            id="retry",
        ),
        pytest.param(
            ["", "<think>hm</think>"],
            ["one", "two"],
            ["> one", "[empty reply]", "", "> two", "hm", "[empty reply]"],
            [("one", ""), ("two", "")],
            id="H14 empty replies",
        ),
        pytest.param(
            ["abcdef", "def"],
            ["/set max_tokens 3", "one", "/continue"],
            ["> /set max_tokens 3",
             "--max-tokens  3  Most tokens of a reply; none lets it run to the end of the context. (a whole",
             "                 number, 0 or more, or none)", "",
             "> one", "abc", "[reached the limit of 3 tokens; `/continue` goes on]", "",
             "> /continue", "def", "[reached the limit of 3 tokens; `/continue` goes on]"],
            [("one", "abcdef [...]")],
            id="T69 limit and continue",
        ),
        pytest.param(
            ["\x1b[2J\x9b1A[/b]\r\nx"],
            ["one", "/history"],
            ["> one", "\ufffd[2J\ufffd1A[/b]", "x", "",
             "> /history", "1 user: one", "1 assistant: \ufffd[2J\ufffd1A[/b]", "x"],
            [("one", "\x1b[2J\x9b1A[/b]\r\nx")],
            id="a reply that would drive the terminal",
        ),
    ],
)  # fmt: skip
def test_transcript(open_chat, replies, lines, transcript, messages):
    with open_chat(*replies) as chat:
        for line in lines:
            chat.say(line)
        assert chat.leave() == [GREETING, "", *transcript]
        assert (chat.result, chat.messages) == (0, messages)


def test_several_lines_typed_or_pasted_are_one_message(open_chat):  # T37, H13
    with open_chat("a", "b", "c") as chat:
        chat.begin("one" + CTRL_J + "two", until="a")
        chat.begin(paste("/three\r\r  four"), until="b")
        chat.begin(paste("/five"), until="c")
        assert chat.messages == [("one\ntwo", "a"), ("/three\n\n  four", "b"), ("/five", "c")]
        transcript = ["> one", "  two", "a", "", "> /three", "", "    four", "b", "", "> /five", "c"]
        assert chat.leave()[2:] == transcript


def test_a_pasted_escape_is_sent_as_it_is_and_shown_as_text(open_chat):
    with open_chat("a") as chat:
        chat.begin(paste("one\x1b[31mtwo"), until="a")
        assert chat.messages == [("one\x1b[31mtwo", "a")]
        assert chat.leave() == [GREETING, "", "> one\ufffd[31mtwo", "a"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "/hlep me",
            "error: unknown command `/hlep`: did you mean `/help`? A space before `/` sends it as a message",
        ),
        ("/undo two", "error: `/undo [N]` takes a whole number above 0, not `two`"),
        ("/set temperature hot", "error: temperature is 'hot': "),
    ],
    ids=["unknown", "bad count", "bad value"],
)
def test_a_command_that_fails_is_no_message_and_comes_back_with_up(open_chat, line, error):
    with open_chat("a") as chat:
        chat.begin(line, until=error)
        chat.wait_for(lambda: chat.input == "")
        chat.type(UP)
        chat.wait_for(lambda: chat.input.replace("\n", "") == line)
        chat.type(CTRL_C)
        chat.say("one")
        assert chat.messages == [("one", "a")]


def test_a_template_that_refuses_what_is_left_does_not_end_the_chat(open_chat, monkeypatch):
    with open_chat("a", "b") as chat:
        chat.say("one")

        def refuse():
            raise TemplateError("the chat template failed: it wants two turns")

        monkeypatch.setattr(chat.session.costs, "count_tokens", refuse)
        chat.begin("/undo", until="error: the chat template failed: it wants two turns")
        chat.say("two")
        assert [message for message, _ in chat.messages] == ["two"]


def test_why_leaves_the_figures_of_the_last_turn(open_chat):
    with open_chat("Hello!") as chat:
        chat.say("hi")
        before = chat.bar.split(" · reused ")[1]
        chat.begin("/why 2", until="token")
        chat.wait_for(lambda: chat.is_idle)
        assert chat.bar.split(" · reused ")[1] == before


def test_a_command_that_fails_unforeseen_does_not_end_the_chat(open_chat, monkeypatch):
    with open_chat("a") as chat:
        monkeypatch.setattr(Totals, "table", lambda self: 1 / 0)
        chat.begin("/stats", until="error: ZeroDivisionError: division by zero; run with `--debug` for where")
        chat.say("one")
        assert chat.messages == [("one", "a")]


@pytest.mark.parametrize(
    ("command", "error"),
    [("/retry", "there is no message to answer again yet"), ("/continue", "there is no reply yet")],
)
def test_without_a_turn_there_is_none_to_go_on_with(open_chat, command, error):
    with open_chat("a") as chat:
        chat.say(command)
        chat.say("one")
        transcript = [f"> {command}", f"error: {error}", "", "> one", "a"]
        assert chat.leave() == [GREETING, "", *transcript]


def test_a_reply_that_ended_by_itself_cannot_be_continued(open_chat):
    with open_chat("a") as chat:
        chat.say("one")
        chat.say("/continue")
        assert chat.leave()[-1] == "error: nothing to continue: the last reply ended by itself"
        assert chat.messages == [("one", "a")]


def test_inputs_are_remembered_by_the_next_chat(open_chat):
    with open_chat("a") as chat:
        chat.begin("one" + CTRL_J + "two", until="a")
    with open_chat() as chat:
        chat.type(UP)
        chat.wait_for(lambda: chat.input == "one\ntwo")


def test_the_bar_shows_the_last_turn_and_the_room_left(open_chat):
    def is_standing(used, left):
        # What is read ahead is there in its own time.
        return re.match(rf"tiny · ctx {used}/4096, {left} left( · ahead \d+)? · mem normal ", chat.bar)

    with open_chat("Hello!") as chat:
        chat.wait_for(lambda: is_standing(0, 4096) and " · ahead 6 · " in chat.bar)
        chat.say("hi")
        chat.wait_for(lambda: is_standing(27, 4069))
        assert " · reused 6/21 (6 ahead) · prefill " in chat.bar
        assert chat.bar.endswith(" · 6 out · end_of_turn")
        chat.say("/undo")
        chat.wait_for(lambda: is_standing(0, 4096))


def test_a_turns_end_shows_at_once_however_long_the_screen_rests(open_chat, monkeypatch):
    monkeypatch.setattr(repl.FramePacer, "rest", lambda self: 60.0)
    with open_chat() as chat:
        chat.say("one")
        chat.say("two")


@pytest.mark.parametrize(
    ("vitals", "profile"),
    [
        (Vitals(MemoryPressure.WARN, 10**8), "performance"),
        (Vitals(MemoryPressure.CRITICAL, 10**8), "performance"),
        (Vitals(MemoryPressure.NORMAL, 10**8, is_on_battery=True), "performance"),
        (Vitals(MemoryPressure.NORMAL, 10**8), "efficiency"),
    ],
)
def test_nothing_is_read_ahead_where_memory_or_power_is_short(open_chat, monkeypatch, vitals, profile):
    monkeypatch.setattr(VitalsMonitor, "_read", lambda monitor: vitals)
    options = OPTIONS["power_profile"].change(ChatOptions(), profile)
    with open_chat(session=make_session("Hello!", options=options)) as chat:
        chat.type("hi")
        chat.wait_for("> hi")
        time.sleep(2 * PAUSE_SECONDS)
        assert chat.session.model.producer.fed == []


# While a reply runs


def test_ctrl_c_keeps_what_was_said_and_the_chat_goes_on(open_chat):  # T1, T2, T4, H3, H4
    with open_chat("Hello " * 500, "next", seconds_per_pass=SLOW) as chat:
        chat.begin("hi", until="Hello Hello")
        chat.type(CTRL_C * 20)  # T7
        chat.wait_for("[stopped; `/continue` goes on]")
        chat.say("again")
        (message, reply), last = chat.messages
        assert (message, last) == ("hi", ("again", "next"))
        assert ("Hello " * 500).startswith(reply.removesuffix(" [...]"))
        assert 10 < len(reply) < 2000
        transcript = chat.leave()
        assert transcript.count("[stopped; `/continue` goes on]") == 1
        shown = "".join(
            row + " " for row in transcript[3 : transcript.index("[stopped; `/continue` goes on]")]
        )
        assert shown.rstrip() == reply.removesuffix(" [...]").rstrip()


def test_ctrl_c_before_the_first_token_gives_the_message_back(open_chat):  # T3, H4
    message = "long " * 300 + "message"
    with open_chat("yes", seconds_per_pass=0.1) as chat:
        chat.type(paste(message) + ENTER)
        chat.wait_for(lambda: "Ctrl-C stops" in chat.bar)
        chat.type(CTRL_C)
        chat.wait_for("stopped before the reply began")
        chat.wait_for(lambda: chat.input == "[paste: 1 line, 1,507 characters]")
        assert chat.messages == []
        chat.producer.seconds_per_pass = 0.0
        chat.begin("", until="yes")
        assert chat.messages == [(message, "yes")]


def test_messages_sent_meanwhile_wait_their_turn(open_chat):
    with open_chat("a" * 100, "b", "c", seconds_per_pass=0.02) as chat:
        chat.begin("one", until="aaa")
        chat.type("two" + ENTER + "three" + ENTER)
        chat.wait_for(lambda: "2 queued" in chat.bar)
        chat.producer.seconds_per_pass = 0.0
        chat.wait_for("c")
        transcript = ["> one", "a" * 100, "", "> two", "b", "", "> three", "c"]
        assert chat.leave() == [GREETING, "", *transcript]
        assert chat.messages == [("one", "a" * 100), ("two", "b"), ("three", "c")]


def test_ctrl_c_gives_waiting_messages_back_before_what_is_typed(open_chat):
    with open_chat("a" * 3000, seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        chat.type("two" + ENTER + "three" + ENTER + "typing")
        chat.wait_for(lambda: "2 queued" in chat.bar and chat.input == "typing")
        chat.type(CTRL_C)
        chat.wait_for(lambda: chat.input == "two\nthree\ntyping")
        assert [message for message, _ in chat.messages] == ["one"]


@pytest.mark.parametrize("key", [CTRL_C, UP])
def test_a_pasted_message_that_looks_like_a_command_is_a_message_when_given_back_too(open_chat, key):
    with open_chat("a" * 3000, "b", seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        chat.type(paste("/undo") + ENTER)
        chat.wait_for(lambda: "1 queued" in chat.bar)
        chat.type(key)
        chat.wait_for(lambda: chat.input == "/undo")
        if key == UP:
            chat.type(CTRL_C)
        chat.wait_for("[stopped")
        chat.begin("", until="b")
        chat.wait_for(lambda: chat.is_idle)
        assert chat.messages[1:] == [("/undo", "b")]


def test_ctrl_c_leaves_what_is_typed_as_it_is(open_chat):
    with open_chat("a" * 3000, seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        chat.type("typing" + CTRL_A + CTRL_C)
        chat.wait_for("[stopped")
        chat.type("x")  # the cursor has not moved either
        chat.wait_for(lambda: chat.input == "xtyping")


@pytest.mark.parametrize("command", ["/undo", "/clear", "/forget", "/retry", "/continue"])
def test_what_changes_the_conversation_has_to_wait_and_comes_back_with_up(open_chat, command):
    with open_chat("a" * 3000, seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        chat.begin(
            command, until=f"error: `{command}` has to wait until what runs has ended; Ctrl-C stops it"
        )
        chat.wait_for(lambda: chat.input == "")
        chat.type(UP)
        chat.wait_for(lambda: chat.input == command)
        chat.type(CTRL_C)
        chat.wait_for("[stopped")
        assert len(chat.messages) == 1


def test_what_only_shows_does_not_wait(open_chat):
    with open_chat("a" * 3000, "b", seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        chat.begin("/stats", until="turns")
        chat.begin("/set seed 1", until="--seed")
        chat.begin("/history", until="nothing said yet")
        assert not chat.is_idle
        chat.type(CTRL_C)
        chat.wait_for("[stopped")


@pytest.mark.parametrize("keys", [CTRL_D, "/exit" + ENTER])
def test_leaving_while_a_reply_runs_is_clean(open_chat, keys):  # T9
    with open_chat("a" * 3000, seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        chat.type(keys)
        chat.end()
        assert chat.result == 0


# Keys while nothing runs


def test_ctrl_c_clears_the_input_and_then_says_how_to_leave(open_chat):  # H3
    with open_chat() as chat:
        chat.type("typing")
        chat.wait_for(lambda: chat.input == "typing")
        chat.type(CTRL_C)
        chat.wait_for(lambda: chat.input == "")
        chat.type(CTRL_C)
        chat.wait_for("Ctrl-D or /exit leaves")
        assert chat.leave() == [GREETING, "Ctrl-D or /exit leaves"]


# Leaving the conversation


@pytest.fixture
def leaving(monkeypatch):
    """What it takes to store what was computed for a conversation: until `may_end`, or until it is stopped."""
    steps = SimpleNamespace(begun=threading.Event(), may_end=threading.Event(), threads=[])

    def leave(archive, session, *, cancel):
        steps.threads.append(threading.current_thread().name)
        steps.begun.set()
        while not steps.may_end.is_set() and not cancel.wait(0.001):
            pass
        steps.begun.clear()

    monkeypatch.setattr(ConversationArchive, "leave", leave)
    yield steps
    steps.may_end.set()


def leave_by(chat, line):
    chat.begin(line, until=f"> {line}")
    chat.wait_for("working · Ctrl-C stops")


@pytest.fixture
def noted(tmp_path):
    """Return a file with a conversation of one turn."""
    path = tmp_path / "noted.md"
    turns = (TranscriptTurn(Message("user", "zero"), Message("assistant", "nought"), {}),)
    write_transcript(path, Transcript("noted", "tiny", None, None, turns))
    return path


@pytest.mark.parametrize("line", ["/clear", "/new", "/load {}"])
def test_while_a_conversation_is_left_what_is_typed_shows_and_waits(open_chat, leaving, noted, line):
    line = line.format(noted)
    loaded = [("zero", "nought")] if "load" in line else []
    with open_chat("a", "b", "c") as chat:
        chat.say("one")
        leave_by(chat, line)
        chat.type("tw")
        chat.wait_for(lambda: chat.input == "tw")
        assert leaving.begun.is_set() and len(chat.session.conversation.turns) == 1
        chat.type("o" + ENTER + "/set top_k 3" + ENTER + "/undo" + ENTER + paste("/three") + ENTER)
        chat.wait_for("working · 4 queued")
        chat.terminal.resize(90)
        chat.wait_for(lambda: "queued: /undo" in chat.above and chat.input == "")
        leaving.may_end.set()
        chat.wait_for("c")
        assert chat.messages == [*loaded, ("/three", "c")]
        assert chat.session.options.completion.sampling.top_k == 3
        assert leaving.threads == ["model"]
        said = [row for row in chat.leave() if row.startswith("> ") or row in "abc"]
        assert [row for row in said if row] == [
            "> one", "a", f"> {line}", *(["> zero"] if loaded else []), "> two", "b", "> /set top_k 3", "> /undo",
            "> /three", "c",
        ]  # fmt: skip


@pytest.mark.parametrize("line", ["/clear", "/new", "/load {}"])
def test_ctrl_c_while_it_is_stored_leaves_the_conversation_at_once(open_chat, leaving, noted, line):
    with open_chat("a", "b") as chat:
        chat.say("one")
        leave_by(chat, line.format(noted))
        chat.type("typed" + CTRL_C * 3)
        chat.wait_for(lambda: chat.is_idle)
        assert not leaving.may_end.is_set()
        assert [message for message, _ in chat.messages] == (["zero"] if "load" in line else [])
        chat.type(CTRL_C)
        chat.say("two")
        assert chat.messages[-1] == ("two", "b")


def test_what_waits_can_be_taken_back(open_chat, leaving):
    with open_chat("a") as chat:
        chat.say("one")
        leave_by(chat, "/clear")
        chat.type("/undo" + ENTER)
        chat.wait_for("working · 1 queued")
        chat.type(UP)
        chat.wait_for(lambda: chat.input == "/undo" and "queued" not in chat.bar)
        leaving.may_end.set()
        assert chat.messages == []


def test_what_goes_wrong_unforeseen_keeps_the_conversation_and_gives_back_the_messages_that_wait(
    open_chat, leaving, monkeypatch
):
    def fail(*_):
        raise RuntimeError("boom")

    with open_chat("a") as chat:
        chat.say("one")
        monkeypatch.setattr(chat.session, "clear", fail)
        leave_by(chat, "/clear")
        chat.type("/undo" + ENTER + "two" + ENTER + "/nope" + ENTER + "three" + ENTER)
        chat.wait_for("working · 4 queued")
        leaving.may_end.set()
        chat.wait_for("error: RuntimeError: boom")
        chat.wait_for("not done any more: /undo, /nope")
        chat.wait_for(lambda: chat.input == "two\nthree")
        assert chat.messages == [("one", "a")]


@pytest.mark.parametrize("line", ["/undo", "/nope"])
def test_a_line_that_is_refused_once_it_is_taken_does_not_hold_up_the_next(open_chat, leaving, line):
    with open_chat("a", "b") as chat:
        chat.say("one")
        leave_by(chat, "/clear")
        chat.type(line + ENTER + "two" + ENTER)
        chat.wait_for("working · 2 queued")
        leaving.may_end.set()
        chat.wait_for("b")
        assert sum(row.startswith("error: ") for row in chat.above) == 1
        assert chat.messages == [("two", "b")]


def test_exit_waits_its_turn_and_what_waits_behind_it_is_not_done(open_chat, leaving):
    with open_chat("a", "b") as chat:
        chat.say("one")
        leave_by(chat, "/clear")
        chat.type("/exit" + ENTER + "two" + ENTER)
        chat.wait_for("working · 2 queued")
        leaving.may_end.set()
        assert "> two" not in chat.end()
        assert (chat.result, chat.session.conversation.turns) == (0, ())


def test_ctrl_d_leaves_at_once(open_chat, leaving):
    with open_chat("a") as chat:
        chat.say("one")
        leave_by(chat, "/clear")
        chat.type(CTRL_D)
        chat.end()
        assert chat.result == 0 and not leaving.may_end.is_set()


# Errors


class FailingProducer(PacedProducer):
    """Raises `fault`, where there is one."""

    fault = None

    def produce_chunk(self, tokens, position, *, need_logits):
        if self.fault is not None:
            raise self.fault
        return super().produce_chunk(tokens, position, need_logits=need_logits)


@pytest.fixture
def failing_session():
    """Return a session and its producer, which can be made to fail."""
    producer = make_producer("yes")
    producer.__class__ = FailingProducer
    return make_session(producer=producer), producer


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (
            TemplateError("the chat template failed: no tools"),
            "error: the chat template failed: no tools",
        ),  # T73
        (RuntimeError("boom"), "error: RuntimeError: boom; run with `--debug` for where"),
        (MemoryError(), "error: MemoryError: ; run with `--debug` for where"),
    ],
    ids=["foreseen", "unforeseen", "memory"],
)
def test_a_turn_that_fails_gives_its_message_back_and_the_chat_goes_on(
    open_chat, failing_session, fault, error
):
    session, producer = failing_session
    producer.fault = fault
    with open_chat(session=session) as chat:
        chat.begin("one", until=error)
        chat.wait_for(lambda: chat.input == "one")
        assert chat.messages == []
        producer.fault = None
        chat.begin("", until="yes")
        assert chat.leave() == [GREETING, "", "> one", error, "", "> one", "yes"]
        assert chat.messages == [("one", "yes")]


def test_debug_shows_where_it_went_wrong(open_chat, failing_session):
    session, producer = failing_session
    producer.fault = RuntimeError("boom")
    with open_chat(session=session, is_debug=True, rows=200) as chat:
        chat.begin("one", until="Traceback (most recent call last):")
        chat.wait_for("error: RuntimeError: boom")


@pytest.mark.parametrize("method", ["take", "finish", "live_text"])
def test_what_cannot_be_drawn_is_said_once_and_the_chat_goes_on(open_chat, monkeypatch, method):
    fault = "error: ValueError: cannot draw; run with `--debug` for where"

    def fail(*_, **__):
        raise ValueError("cannot draw")

    with open_chat("a\nb\n" * 50, "two", seconds_per_pass=SLOW) as chat:
        with monkeypatch.context() as patched:
            patched.setattr(turn_view.TurnView, method, fail)
            chat.begin("one", until=fault)
            chat.wait_for(lambda: chat.is_idle and not chat.repl._desk.is_busy)
        chat.begin("again", until="two")
        assert chat.messages == [("one", "a\nb\n" * 50), ("again", "two")]
        assert chat.leave().count(fault) == 1
        assert chat.result == 0


def test_one_event_that_cannot_be_drawn_takes_no_other_with_it(open_chat, monkeypatch):
    take = turn_view.TurnView.take

    def fail_at_b(self, event, **room):
        if getattr(event, "text", "") == "b":
            raise ValueError("no b")
        return take(self, event, **room)

    monkeypatch.setattr(turn_view.TurnView, "take", fail_at_b)
    with open_chat("abc", "abcd") as chat:
        chat.say("one")
        chat.say("two")  # and is said again, once for each input
        fault = "error: ValueError: no b; run with `--debug` for where"
        shown = [row for row in chat.leave()[2:] if row]
        assert sorted(shown) == sorted(["> one", "ac", fault, "> two", "acd", fault])


def test_a_failed_retry_leaves_the_turn_there_was(open_chat, failing_session):
    session, producer = failing_session
    with open_chat(session=session) as chat:
        chat.say("one")
        producer.fault = RuntimeError("boom")
        chat.say("/retry")
        assert (chat.messages, chat.input) == ([("one", "yes")], "")
        assert chat.leave()[-1] == "error: RuntimeError: boom; run with `--debug` for where"


# A full context


THIRD = "c" * 60
QUESTION = "leave out the oldest exchange? y/n"


@pytest.fixture
def open_small_chat(open_chat):
    """Open chats whose third message of 60 characters does not fit beside two such turns."""
    return partial(open_chat, "x" * 60, "y" * 60, "z", "w", context_length=400)


def fill(chat, policy):
    """Take two turns under an overflow policy."""
    chat.session.set_option("on_overflow", policy)
    chat.session.set_option("max_tokens", "61")
    chat.say("a" * 60)
    chat.say("b" * 60)


def test_under_the_policy_error_the_message_comes_back(open_small_chat):  # T66
    with open_small_chat() as chat:
        fill(chat, "error")
        chat.begin(THIRD, until="error: does not fit the context: ")
        chat.wait_for(lambda: chat.input == THIRD)
        chat.type(CTRL_C)
        chat.say("/forget")
        chat.say("d" * 60)
        assert [reply for _, reply in chat.messages] == ["y" * 60, "z"]


def test_under_the_policy_drop_it_is_said_what_was_dropped(open_small_chat):  # T63
    with open_small_chat() as chat:
        fill(chat, "drop")
        chat.say(THIRD)
        assert "1 exchange dropped from the prompt to fit the context (141 tokens)" in chat.leave()
        assert len(chat.messages) == 3


def test_under_the_policy_ask_yes_leaves_the_oldest_out_and_answers(open_small_chat):  # T65
    with open_small_chat() as chat:
        fill(chat, "ask")
        chat.begin(THIRD, until=QUESTION)
        chat.type("y" + ENTER)
        chat.wait_for("z")
        assert [message for message, _ in chat.messages] == ["a" * 60, "b" * 60, THIRD]


@pytest.mark.parametrize("answer", ["n" + ENTER, "No" + ENTER, CTRL_C], ids=["n", "no", "ctrl-c"])
def test_no_gives_the_message_back_before_what_was_being_typed(open_small_chat, answer):
    with open_small_chat() as chat:
        fill(chat, "ask")
        chat.type(THIRD + ENTER + "and")
        chat.wait_for(QUESTION)
        chat.type(answer)
        chat.wait_for(lambda: chat.input == THIRD + "\nand")
        assert len(chat.messages) == 2


def test_what_is_no_answer_stays_and_so_does_the_question(open_small_chat):
    with open_small_chat() as chat:
        fill(chat, "ask")
        chat.begin(THIRD, until=QUESTION)
        chat.begin("what?", until=f"{QUESTION} what?")
        chat.type(BACKSPACE * 5 + "y" + ENTER)
        chat.wait_for("z")


def test_what_waits_behind_a_question_comes_after_it(open_small_chat):
    with open_small_chat() as chat:
        fill(chat, "ask")
        chat.type(THIRD + ENTER + "short" + ENTER)  # both before the model has looked at the first
        chat.wait_for(QUESTION)
        assert "> short" not in chat.above
        chat.type("yes" + ENTER)
        chat.wait_for("w")
        assert chat.messages[2:] == [(THIRD, "z"), ("short", "w")]


# Notices


def test_a_notice_from_any_thread_is_shown(open_chat):
    with open_chat("a" * 50, seconds_per_pass=SLOW) as chat:
        chat.begin("one", until="aaa")
        threads = [
            threading.Thread(target=chat.repl.warn, args=(f"odd {number}\x1b",)) for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for number in range(3):
            chat.wait_for(f"warning: odd {number}\ufffd")
        chat.wait_for(lambda: chat.is_idle)
        assert "a" * 50 in chat.leave()


def test_a_notice_from_before_the_start_comes_after_the_greeting(open_chat, tmp_path):
    (tmp_path / "history").write_bytes(b"{\n")
    with open_chat() as chat:
        chat.wait_for("warning: ")
        greeting, warning, *_ = chat.leave()
        assert greeting == GREETING
        assert "line 1 is damaged" in warning


def test_a_notice_that_comes_too_late_is_no_error(open_chat):
    with open_chat() as chat:
        chat.leave()
        chat.repl.warn("late")


# Replies to another stream


def test_replies_may_go_to_another_stream_as_they_are(open_chat):  # T17
    replies = io.StringIO()
    with open_chat("<think>hm</think>\x1b[1myes\n\n", "x", reply_stream=replies) as chat:
        chat.say("one")
        chat.say("two")
        assert chat.leave() == [GREETING, "", "> one", "hm", "", "> two"]
        assert replies.getvalue() == "\x1b[1myes\n\n\nx\n"


def test_notices_stay_on_the_screen_then(open_small_chat):  # T63
    replies = io.StringIO()
    with open_small_chat(reply_stream=replies) as chat:
        fill(chat, "drop")
        chat.say(THIRD)
        assert "1 exchange dropped from the prompt to fit the context (141 tokens)" in chat.leave()
        assert replies.getvalue() == "x" * 60 + "\n" + "y" * 60 + "\nz\n"


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_when_their_reader_has_gone_the_chat_ends(open_chat):
    with open_chat("yes", reply_stream=ClosedPipe()) as chat:
        chat.type("one" + ENTER)
        chat.end()
        assert isinstance(chat.result, BrokenPipeError)
