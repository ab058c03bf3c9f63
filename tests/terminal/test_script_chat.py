"""A chat in a pipe: the same lines give the same turns as text, as objects and through a ChatSession."""

import io
import json
import os
import signal

import pytest
from chat_templates import CHATML
from scripted_chat import make_producer, make_session
from sessions import NEVER, hash_chat

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.attachment import Attachment, join_attachments
from turbospark_chat.chat.options import find_option
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.turn_result import ReplyText
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.errors import ContextOverflowError, UsageError
from turbospark_chat.terminal.script import ScriptRunner
from turbospark_chat.terminal.script_chat import ScriptChat
from turbospark_chat.terminal.script_output import JsonOutput, Streams, TextOutput


class OneModel:
    """The models there are: this one."""

    current = "tiny"


class Piped:
    """A chat between strings. What it stores is in `path`, where `is_stored` says so."""

    def __init__(self, session, path, *, kind=JsonOutput, is_stored=False, out=None, attachments=(), **style):
        self.session, self._path = session, path
        self.out, self.err = out or io.StringIO(), io.StringIO()
        self.archive = ConversationArchive(lambda: Store.open(path))
        if is_stored:
            self.archive.keep(session)
        self._thread = ModelThread()
        output = kind(Streams(self.out, self.err), **style)
        self.chat = ScriptChat(
            session, ScriptRunner(self._thread, output), output,
            archive=self.archive, models=OneModel(), is_json=kind is JsonOutput, attachments=attachments,
        )  # fmt: skip

    def say(self, *lines):
        return self.run(lines)

    def run(self, lines):
        try:
            return self.chat.run(lines)
        finally:
            self._thread.close()
            self.archive.close()

    @property
    def objects(self):
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    @property
    def turns(self):
        return [shown for shown in self.objects if shown["event"] == "turn"]

    @property
    def events(self):
        return [shown["event"] for shown in self.objects]


@pytest.fixture
def path(tmp_path):
    """Return where conversations are stored."""
    return tmp_path / "conversations.db"


@pytest.fixture
def piped(path):
    """Return a chat in which the model says these replies."""

    def make(*replies, context_length=4096, **more):
        return Piped(make_session(*replies, context_length=context_length), path, **more)

    return make


def conversation_of(session):
    conversation = session.conversation
    return conversation.system, conversation.branch, dict(conversation.branches)


# One conversation by three ways


def send(text):
    return lambda session: session.send(text, cancel=NEVER, on_event=lambda event: None)


def retry(**changes):
    def take(session):
        options = session.options
        for name, text in changes.items():
            options = find_option(name).change(options, text)
        return session.retry(options=options, cancel=NEVER, on_event=lambda event: None)

    return take


MESSAGES = {text: send(text) for text in ("one", "two", "three", "  /four", "five 中 😀")}
COMMANDS = {
    "/undo": lambda session: session.undo(),
    "/undo 2": lambda session: session.undo(2),
    "/rewind 1": lambda session: session.rewind(1),
    "/forget": lambda session: session.forget(),
    "/clear": lambda session: session.clear(),
    "/new": lambda session: session.start_over(),
    "/system Be brief.": lambda session: session.set_system("Be brief."),
    "/system none": lambda session: session.set_system(None),
    "/set temperature 0": lambda session: session.set_option("temperature", "0"),
    "/set max_tokens 3": lambda session: session.set_option("max_tokens", "3"),
    "/retry": retry(),
    "/retry --max-tokens 2": retry(max_tokens="2"),
    "/regen --temperature=2 --seed 7": retry(temperature="2", seed="7"),
    "/continue": lambda session: session.continue_reply(cancel=NEVER, on_event=lambda event: None),
    "/edit uno": lambda session: session.retry(content="uno", cancel=NEVER, on_event=lambda event: None),
    "/branch b": lambda session: session.branch_off("b"),
    "/switch main": lambda session: session.switch("main"),
    "/history": lambda session: None,
    "/stats": lambda session: None,
    "/branches": lambda session: None,
}
CONVERSATIONS = (
    ("one", "two", "three", "  /four", "five 中 😀"),
    ("one", "two", "/undo", "three", "/undo 2", "one"),
    ("one", "/retry", "/retry --max-tokens 2", "two", "/regen --temperature=2 --seed 7", "three"),
    ("/system Be brief.", "one", "two", "/system none", "three"),
    ("/set max_tokens 3", "one", "/continue", "/continue", "two"),
    ("one", "two", "/edit uno", "three", "/rewind 1", "two"),
    ("one", "/branch b", "two", "/switch main", "/branches", "three", "/history", "/stats"),
    (
        "one",
        "/forget",
        "two",
        "/clear",
        "three",
        "/system Be brief.",
        "/new",
        "/set temperature 0",
        "/set max_tokens 3",
        "one",
    ),
)


def as_object(line):
    return json.dumps({"content": line} if line in MESSAGES else {"command": line})


@pytest.mark.parametrize("lines", CONVERSATIONS, ids=" ".join)
def test_the_same_lines_give_the_same_turns_by_every_way(path, lines):  # T15, T16
    text = Piped(hash_chat(CHATML).session, path, kind=TextOutput)
    mixed = Piped(hash_chat(CHATML).session, path)
    objects = Piped(hash_chat(CHATML).session, path)
    direct = hash_chat(CHATML).session
    results = [result for line in lines if (result := (MESSAGES | COMMANDS)[line](direct)) is not None]
    turns = [result for result in results if hasattr(result, "raw")]

    assert text.say(*lines) == mixed.say(*lines) == objects.say(*map(as_object, lines)) == 0
    assert [turn["token_ids"] for turn in objects.turns] == [list(turn.raw.token_ids) for turn in turns]
    assert [turn["reply"] for turn in objects.turns] == [turn.turn.reply.content for turn in turns]
    assert [turn["token_ids"] for turn in mixed.turns] == [turn["token_ids"] for turn in objects.turns]
    for way in (text, mixed, objects):
        assert conversation_of(way.session) == conversation_of(direct)
    if "/continue" not in lines:  # which writes what is new of a reply
        assert text.out.getvalue() == "".join(f"{turn.turn.reply.content}\n" for turn in turns)


def test_every_message_of_several_lines_is_one(piped):
    chat = piped("yes")
    assert chat.say(json.dumps({"content": "a\n\n/undo\n"})) == 0
    assert [turn.user.content for turn in chat.session.conversation.turns] == ["a\n\n/undo\n"]


def test_a_message_may_begin_with_a_slash(piped):
    chat = piped("yes", "no")
    assert chat.say('{"content": "/etc"}', '{"content": "/exit"}') == 0
    assert [turn.user.content for turn in chat.session.conversation.turns] == ["/etc", "/exit"]


# Commands


def test_answers_go_to_stderr_and_never_to_stdout(piped):
    chat = piped("yes", kind=TextOutput)
    assert chat.say("hi", "/history", "/system", "/undo", "/branches") == 0
    assert chat.out.getvalue() == "yes\n"
    for part in ("hi", "no system prompt", "taking back 1 turn", "main"):
        assert part in chat.err.getvalue()
    assert not [line for line in chat.err.getvalue().split("\n") if line != line.rstrip()]


def test_an_answer_is_an_event_that_names_its_command(piped):
    chat = piped("yes")
    assert chat.say("hi", "/undo", '{"command": "/branches "}', "/exit") == 0
    assert chat.events == ["turn", "command", "command", "command"]  # one for every line
    assert [shown["command"] for shown in chat.objects[1:]] == ["/undo", "/branches", "/exit"]
    assert chat.objects[1]["answer"].startswith("taking back 1 turn: ")


def test_what_a_command_costs_is_told_before_the_turn_that_answers_the_line(piped):
    chat = piped("yes", "no", is_streaming=True)
    chat.say("hi", "/retry")
    notice, *_, turn = chat.objects[chat.events.index("turn") + 1 :]
    assert (notice["event"], turn["event"]) == ("notice", "turn")
    assert notice["text"].startswith("answering again: ")
    assert chat.events.count("turn") == 2 and "command" not in chat.events


def test_a_command_that_computes_an_answer_gives_it(piped):
    chat = piped("yes")
    assert chat.say("hi", "/why") == 0
    assert chat.events == ["turn", "command"]
    assert "yes"[0] in chat.objects[1]["answer"]


def test_exit_takes_no_further_line(piped):
    chat = piped("yes")
    lines = iter(["hi", "/exit", "never", "nor this"])
    assert chat.run(lines) == 0
    assert (list(lines), len(chat.turns)) == (["never", "nor this"], 1)


def test_files_go_with_the_next_message_once(piped, tmp_path):
    (tmp_path / "notes.txt").write_text("milk\n")
    given, attached = Attachment("given.txt", "eggs\n"), Attachment("notes.txt", "milk\n")
    chat = piped("a", "b", "c", kind=TextOutput, attachments=[given])
    chat.say("one", f"/attach {tmp_path / 'notes.txt'}", "two", "three")
    assert [turn.user.content for turn in chat.session.conversation.turns] == [
        join_attachments([given], "one"), join_attachments([attached], "two"), "three",
    ]  # fmt: skip
    assert chat.err.getvalue() == "notes.txt: 5 tokens go with the next message\n"


def test_a_file_stays_until_a_message_was_answered(piped):
    chat = piped("yes", context_length=200, attachments=[Attachment("notes.txt", "milk\n")])
    assert chat.say("m" * 300, "hi") == 4
    assert chat.events == ["error", "turn"]
    assert "milk" in chat.session.conversation.turns[0].user.content


# Errors


@pytest.mark.parametrize("wrong", ["/nope", "/undo 9", "/set temperature hot", "/copy", "/rewind x"])
def test_in_text_an_error_ends_the_run_where_it_stands(piped, wrong):
    chat = piped("yes", "no", kind=TextOutput)
    with pytest.raises(UsageError):
        chat.say("hi", wrong, "never")
    assert chat.out.getvalue() == "yes\n"
    assert len(chat.session.conversation.turns) == 1


@pytest.mark.parametrize(
    "wrong",
    ["/nope", "/undo 9", "/set temperature hot", "/copy", "{", '{"content": ""}', '{"command": "/nope"}'],
)
def test_in_json_an_error_is_an_event_and_the_conversation_goes_on(piped, wrong):
    chat = piped("yes", "no")
    assert chat.say("hi", wrong, "again") == 2
    assert chat.events == ["turn", "error", "turn"]
    assert (chat.objects[1]["exit_code"], chat.err.getvalue()) == (2, "")
    assert chat.objects[1]["message"]
    assert chat.turns[1]["reused_prefix_tokens"] > 0


@pytest.mark.parametrize(("lines", "code"), [(["/nope", "m" * 300], 2), (["m" * 300, "/nope"], 4)])
def test_the_first_error_is_the_exit_code(piped, lines, code):
    chat = piped("yes", context_length=200)
    assert chat.say(*lines, "hi") == code
    assert chat.events == ["error", "error", "turn"]


def test_in_text_a_message_that_does_not_fit_ends_the_run(piped):  # T62
    chat = piped("yes", kind=TextOutput, context_length=200)
    with pytest.raises(ContextOverflowError):
        chat.say("m" * 300, "hi")


@pytest.mark.parametrize(("lines", "code"), [([], 130), (["/nope"], 2)], ids=["alone", "after an error"])
def test_a_cancelled_turn_is_130_unless_an_error_came_before(path, lines, code):  # T6
    session = make_session("Hello there", "next")
    chat = Piped(session, path)
    answer = session.send

    def interrupted(content, *, cancel, on_event):
        def take(event):
            on_event(event)
            is_fifth = isinstance(event, ReplyText) and event.n_tokens == 5
            if content == "stop" and is_fifth and not cancel.is_set():
                os.kill(os.getpid(), signal.SIGINT)
                assert cancel.wait(10)

        return answer(content, cancel=cancel, on_event=take)

    session.send = interrupted
    assert chat.say(*lines, "stop", "go on") == code
    assert [(turn["reply"], turn["reason"]) for turn in chat.turns] == [
        ("Hello", "cancelled"), ("next", "end_of_turn"),
    ]  # fmt: skip


# Where a turn stands


def test_a_turn_has_a_number_and_a_stored_one_its_conversations(piped, path):
    chat = piped("a", "b", "c", "d", is_stored=True)
    chat.say("one", "two", "/undo", "three", "/clear", "four")
    assert [(turn["conversation_id"], turn["turn"]) for turn in chat.turns] == [
        (1, 1),
        (1, 2),
        (1, 2),
        (2, 1),
    ]
    store = Store.open(path)
    assert [turn.reply.content for turn in store.load("1@2").conversation.turns] == ["a", "c"]
    store.close()


def test_without_storing_there_is_a_number_but_no_conversation(piped, path):
    chat = piped("a", "b")
    chat.say("one", "two")
    assert [(turn["conversation_id"], turn["turn"]) for turn in chat.turns] == [(None, 1), (None, 2)]
    assert not path.exists()


class Watched(io.StringIO):
    """Notes at every turn that is told how many are stored."""

    def __init__(self, path):
        super().__init__()
        self._path, self.n_stored = path, []

    def write(self, text):
        if text.startswith('{"event": "turn"'):
            store = Store.open(self._path)
            self.n_stored.append(len(store.load("last").conversation.turns))
            store.close()
        return super().write(text)


def test_what_is_told_is_stored_already(piped, path):
    chat = piped("a", "b", "c", is_stored=True, out=Watched(path))
    chat.say("one", "two", "three")
    assert chat.out.n_stored == [1, 2, 3]


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


def test_when_the_reader_has_gone_what_ended_and_what_was_under_way_is_stored(path):
    session = make_session(producer=make_producer("yes", "x" * 1000, seconds_per_pass=0.001))
    chat = Piped(session, path, kind=TextOutput, is_stored=True, out=Closed(4 + 5))
    with pytest.raises(BrokenPipeError):
        chat.say("one", "two", "three")
    store = Store.open(path)
    first, second = store.load("last").conversation.turns
    store.close()
    assert (first.reply.content, first.reply.complete) == ("yes", True)
    assert 5 <= len(second.reply.content) < 1000 and not second.reply.complete


# Streaming


def test_the_texts_of_a_stream_are_the_reply_and_the_thinking(piped):
    replies = ("<think>hm,\nhm</think>\n\nGrüße 👨\u200d👩\u200d👧\u2028.", "", "no")
    chat = piped(*replies, is_streaming=True)
    chat.say("m" * 200, "two", "three")
    begin = 0
    assert chat.events.count("turn") == 3 and chat.events[-1] == "turn"
    while begin < len(chat.objects):
        end = chat.events.index("turn", begin)
        *events, turn = chat.objects[begin : end + 1]
        begin = end + 1
        said = [[e["text"] for e in events if e.get("is_reasoning") is kind] for kind in (False, True)]
        assert ("".join(said[0]), "".join(said[1])) == (turn["reply"], turn["reasoning"] or "")
        assert [e["event"] for e in events] == sorted(e["event"] for e in events)  # prefill, then token
        done = [e["done"] for e in events if e["event"] == "prefill"]
        assert done == sorted(set(done)) and done[-1] == turn["prompt_tokens"]
        counts = [e["n_tokens"] for e in events if e["event"] == "token"]
        assert counts == sorted(counts) and all(count <= turn["new_tokens"] + 1 for count in counts)
    assert [turn["reply"] for turn in chat.turns] == ["Grüße 👨\u200d👩\u200d👧\u2028.", "", "no"]
    assert chat.turns[0]["reasoning"] == "hm,\nhm"
