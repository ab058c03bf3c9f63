"""Replies on a stream beside the screen."""

import io
import os

import pytest

from turbospark_chat.terminal.reply_stream import ReplyStream


def test_each_reply_is_passed_on_as_it_is_and_ends_in_a_newline():  # T17, T18
    stream = io.StringIO()
    replies = ReplyStream(stream)
    for reply in (["one ", "\x1b[1mmore\n"], ["two"]):
        for text in reply:
            replies.write(text)
        assert replies.end() is True
    assert stream.getvalue() == "one \x1b[1mmore\n\ntwo\n"


def test_where_nothing_was_written_nothing_ends():
    stream = io.StringIO()
    replies = ReplyStream(stream)
    replies.write("one")
    assert [replies.end(), replies.end()] == [True, False]
    assert stream.getvalue() == "one\n"


@pytest.fixture(params=["pipe", "file", "no file"])
def stream_of_kind(request, tmp_path):
    if request.param == "pipe":
        read_end, write_end = os.pipe()
        with os.fdopen(write_end, "w") as stream:
            yield request.param, stream
        os.close(read_end)
    elif request.param == "file":
        with open(tmp_path / "replies", "w", encoding="utf-8") as stream:
            yield request.param, stream
    else:
        yield request.param, io.StringIO()


def test_only_a_pipe_may_end_at_this_terminal(stream_of_kind):
    kind, stream = stream_of_kind
    assert ReplyStream(stream).is_pipe == (kind == "pipe")
