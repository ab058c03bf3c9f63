"""Tables on stdout and download bars on stderr."""

import io
import re
import sys

import pytest

from turbospark_chat.terminal.listing import print_table, pull_progress

ROWS = [
    ("name", "smollm2"),
    ("template", "a long value " * 12),
    ("中文", "wide"),
    ("empty", ""),
    ("foreign", "\x1b[2J\ntext [/INST] :smile:"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(rows, stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream)
    print_table(rows)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def color_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")


def test_a_pipe_gets_the_terminals_text_without_its_styles(monkeypatch):  # T21
    on_terminal = printed(ROWS, Terminal(), monkeypatch)
    assert "\x1b[1m" in on_terminal
    assert printed(ROWS, io.StringIO(), monkeypatch) == re.sub("\x1b\\[[0-9;]*m", "", on_terminal)


def test_columns_line_up_and_nothing_is_wrapped_or_cut(monkeypatch):
    assert printed(ROWS, io.StringIO(), monkeypatch).split("\n") == [
        "name      smollm2",
        "template  " + ("a long value " * 12).rstrip(),
        "中文      wide",
        "empty",
        "foreign   \ufffd[2J text [/INST] :smile:",
        "",
    ]


def test_a_plain_terminal_gets_no_escape_code(monkeypatch):  # H6
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(ROWS, Terminal(), monkeypatch)


def test_a_download_shows_its_stages_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with pull_progress(stream) as show:
        show("download", 1_000_000, 2_000_000)
        show("download", 2_000_000, 2_000_000)
        show("unpack", 1, 2)
    assert re.search("download .* 2.0/2.0 MB", re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()))
    assert "unpack" in stream.getvalue()


def test_a_download_says_nothing_into_a_file():
    stream = io.StringIO()
    with pull_progress(stream) as show:
        show("download", 1, 2)
    assert stream.getvalue() == ""
