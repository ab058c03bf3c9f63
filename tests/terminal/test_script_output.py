"""What a script is answered: what goes to stdout, what to stderr, and what the objects are."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stored_turns import RAW, said

from turbospark_chat.chat.turn_result import NotKept, ReplyText, StoredApart, TurnResult, TurnsDropped
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.errors import ContextOverflowError, UsageError
from turbospark_chat.terminal import progress_line
from turbospark_chat.terminal.script_output import JsonOutput, Streams, TextOutput
from turbospark_chat.terminal.turn_record import TurnOrigin, turn_record

ORIGIN = TurnOrigin("tiny", "numpy, float32", conversation_id=7, turn=2)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Written:
    """Two streams, and an output that writes to them."""

    def __init__(self, kind, *, out=None, err=None, is_quiet=False, **style):
        self._out, self._err = out or io.StringIO(), err or io.StringIO()
        self.output = kind(Streams(self._out, self._err, is_quiet=is_quiet), **style)

    @property
    def out(self):
        return self._out.getvalue()

    @property
    def err(self):
        return self._err.getvalue()

    @property
    def objects(self):
        return [json.loads(line) for line in self.out.split("\n")[:-1]]

    def turn(self, *events, reply="", reason=StopReason.END_OF_TURN):
        self.output.begin_turn()
        for event in events:
            self.output.take(event)
        self.output.stop_turn()
        self.output.end_turn(result(reply, reason), ORIGIN)
        return self


def result(reply, reason=StopReason.END_OF_TURN):
    return TurnResult(said("hi", reply), replace(RAW, reason=reason), 0, 0)


def shown(*texts, is_reasoning=False):
    return [ReplyText(text, is_reasoning, number) for number, text in enumerate(texts, start=1)]


def thought(*texts):
    return shown(*texts, is_reasoning=True)


# Text


def test_replies_are_lines_of_stdout():  # T12, T16, T20, T24
    written = Written(TextOutput)
    written.turn(*shown("one", "", "\ntwo")).turn().turn(*shown("中"))
    assert (written.out, written.err) == ("one\ntwo\n\n中\n", "")


def test_a_separator_stands_between_two():
    written = Written(TextOutput, separator="--\n")
    written.turn(*shown("one"))
    assert written.out == "one\n"
    written.turn(*shown("two")).turn(*shown("three"))
    assert written.out == "one\n--\ntwo\n--\nthree\n"


@pytest.mark.parametrize(
    ("events", "out", "err"),
    [
        ([*thought("hm\n", "hm"), *shown("yes")], "yes\n", "hm\nhm\n"),
        (thought("hm"), "\n", "hm\n"),
        ([*thought("a"), *shown("b"), *thought("c"), *shown("d")], "bd\n", "a\nc\n"),
        ([*thought("", ""), *shown("yes")], "yes\n", ""),
    ],
    ids=["then an answer", "that never ends", "twice", "without text"],
)
@pytest.mark.parametrize("how", ["shown", "hidden", "quiet"])
def test_thinking_is_never_on_stdout(events, out, err, how):  # T25, T76
    written = Written(TextOutput, is_quiet=how == "quiet", hides_thinking=how == "hidden").turn(*events)
    assert (written.out, written.err) == (out, err if how == "shown" else "")


NOTICES = (TurnsDropped(1, 171), NotKept("the disk is full"), StoredApart("main", "main-2"))


@pytest.mark.parametrize("is_quiet", [False, True])
def test_notices_and_the_limit_go_to_stderr_unless_it_is_to_be_quiet(is_quiet):  # T24, T63, T69
    written = Written(TextOutput, is_quiet=is_quiet)
    written.turn(*NOTICES, *shown("a"), reason=StopReason.MAX_TOKENS)
    written.output.answer("/undo", "taking back 1 turn")
    expected = "".join(f"{line}\n" for line in (
        "1 exchange dropped from the prompt to fit the context (171 tokens)",
        "this turn is not stored: the disk is full",
        "another program goes on with branch main too: yours is stored as branch main-2",
        "[reached the limit of 3 tokens: max_tokens]",
        "taking back 1 turn",
    ))  # fmt: skip
    assert (written.out, written.err) == ("a\n", "" if is_quiet else expected)


def test_a_script_that_reads_text_could_not_tell_an_error_but_a_person_can():
    assert not Written(TextOutput).output.survives_errors
    written = Written(TextOutput, survives_errors=True, is_quiet=True)
    written.output.fail(UsageError("no"))
    assert (written.out, written.err, written.output.survives_errors) == ("", "error: no\n", True)


@pytest.mark.parametrize("stream", ["out", "err"])
def test_a_pipe_gets_the_bytes_and_a_terminal_none_it_would_obey(stream):  # T18, H6
    text = "\x1b[2Jred\x9b\r\n"
    event = ReplyText(text, stream == "err", 1)
    for kind, seen in [(io.StringIO, text), (Terminal, "\ufffd[2Jred\ufffd\n")]:
        written = Written(TextOutput, **{stream: kind()}).turn(event)
        assert getattr(written, stream) == seen + "\n"


@pytest.mark.parametrize(
    ("err", "is_quiet", "is_shown"),
    [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)],
    ids=["terminal", "quiet", "file"],
)
def test_a_long_prefill_shows_how_far_it_is_and_is_gone_before_the_reply(
    monkeypatch, err, is_quiet, is_shown
):  # T78
    monkeypatch.setattr(progress_line, "QUIET_SECONDS", 0.0)
    written = Written(TextOutput, err=err(), is_quiet=is_quiet)
    written.turn(*(Prefill(done, 169, 0) for done in (64, 128, 169)), *thought("hm"), *shown("yes"))
    *drawn, last = written.err.split("\r")
    assert last == ("" if is_quiet else "hm\n")
    assert [part.split(",")[0] for part in drawn if part.strip()] == (
        ["prefill 64/169", "prefill 128/169"] if is_shown else []
    )


def test_a_prefill_that_is_cut_short_leaves_no_line_either(monkeypatch):
    monkeypatch.setattr(progress_line, "QUIET_SECONDS", 0.0)
    written = Written(TextOutput, err=Terminal())
    written.output.begin_turn()
    written.output.take(Prefill(64, 169, 0))
    written.output.stop_turn()
    assert "prefill 64/169" in written.err
    assert written.err.rsplit("\r", 1)[1] == ""


# JSON

EVERYTHING = (Prefill(3, 9, 2), *thought("hm"), *shown("", "ye", "s"), *NOTICES)


def test_a_turn_is_one_object_and_what_is_told_besides_goes_to_stderr():  # T63
    written = Written(JsonOutput).turn(*EVERYTHING, reply="yes")
    assert written.objects == [{"event": "turn", **turn_record(result("yes"), ORIGIN)}]
    assert written.err == "".join(f"{notice}\n" for notice in NOTICES)
    assert Written(JsonOutput, is_quiet=True).turn(*EVERYTHING).err == ""


def test_where_events_are_wanted_each_is_an_object_and_the_turn_the_last():
    written = Written(JsonOutput, is_streaming=True).turn(*EVERYTHING, reply="yes")
    assert written.err == ""
    assert written.objects[:-1] == [
        {"event": "prefill", "done": 3, "total": 9, "reused": 2},
        {"event": "token", "text": "hm", "is_reasoning": True, "n_tokens": 1},
        {"event": "token", "text": "ye", "is_reasoning": False, "n_tokens": 2},
        {"event": "token", "text": "s", "is_reasoning": False, "n_tokens": 3},
        *({"event": "notice", "text": str(notice)} for notice in NOTICES),
    ]
    assert written.objects[-1]["event"] == "turn"


def test_commands_are_answered_and_errors_told_by_objects():
    written = Written(JsonOutput)
    written.output.answer("/branches", "main\nother")
    written.output.fail(UsageError("no"))
    written.output.fail(ContextOverflowError(90, 20, 100, advice="shorten it"))
    command, *errors = written.objects
    assert command == {"event": "command", "command": "/branches", "answer": "main\nother"}
    assert errors[0] == {"event": "error", "message": "no", "exit_code": 2}
    assert (errors[1]["exit_code"], "exceed 100" in errors[1]["message"]) == (4, True)
    assert written.err == ""


@given(st.text(st.characters(exclude_categories=())))
@example("a\ud800b\x85c\u2028d\u2029e\x0b\x1c\\")
def test_whatever_a_reply_holds_an_object_is_one_line_of_utf8_that_says_it(reply):
    written = Written(JsonOutput, is_streaming=True).turn(*shown(reply), reply=reply)
    assert written.out.encode().decode() == written.out
    lines = written.out.splitlines()  # also at U+0085 and U+2028
    assert [json.loads(line)["event"] for line in lines] == (["token"] if reply else []) + ["turn"]
    assert json.loads(lines[-1])["reply"] == reply


def test_no_object_moves_a_terminal():
    evil = "".join(map(chr, (*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
    written = Written(JsonOutput, out=Terminal()).turn(reply=evil)
    assert [letter for letter in written.out if not letter.isprintable()] == ["\n"]
    assert written.objects[0]["reply"] == evil


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "utf-16", "cp1252"])
def test_no_encoding_takes_a_letter_from_an_object(encoding):  # T44
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    JsonOutput(Streams(stream, io.StringIO())).end_turn(result("Grüße 中 😀"), ORIGIN)
    line = stream.buffer.getvalue().decode(encoding)
    assert json.loads(line)["reply"] == "Grüße 中 😀"
    assert ("中" in line) == encoding.startswith("utf")  # readable where it can be
