"""The clipboard, its programs played by small scripts in a PATH of their own."""

import base64
import os

import pytest

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal import clipboard
from turbospark_chat.terminal.clipboard import MOST_TERMINAL_BYTES, copy, paste


@pytest.fixture
def install(tmp_path):
    """Put clipboard programs into a PATH; return the environment there."""

    def install(display, **programs):
        for name, script in programs.items():
            program = tmp_path / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\ncd '{tmp_path}'\nPATH='{os.environ['PATH']}'\n{script}\n")
            program.chmod(0o755)
        return {"PATH": str(tmp_path), **display}

    return install


X11, WAYLAND, TMUX, NOTHING = {"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "wayland-0"}, {"TMUX": "/tmp/t,1,0"}, {}
KEEP = 'echo "$@" >arguments; cat >copied'


@pytest.mark.parametrize(
    ("display", "program", "arguments"),
    [
        (WAYLAND, "wl_copy", ""),
        (X11, "xclip", "-selection clipboard"),
        (X11, "xsel", "-ib"),
        (NOTHING, "pbcopy", ""),
        (TMUX, "tmux", "load-buffer -w -"),
    ],
)
def test_text_is_copied_by_the_displays_program(install, tmp_path, display, program, arguments):
    by = copy("中文\n\x1b[1m", install(display, **{program: KEEP}), write=None)
    assert by == program.replace("_", "-")
    assert (tmp_path / "copied").read_text() == "中文\n\x1b[1m"
    assert (tmp_path / "arguments").read_text().strip() == arguments


def test_the_terminal_gets_it_too():
    written = []
    assert copy("中文", {}, write=written.append) == "the terminal"
    assert written == [f"\x1b]52;c;{base64.b64encode('中文'.encode()).decode()}\x07"]


def test_within_tmux_it_is_wrapped(install):
    written = []
    assert copy("a", install(TMUX, tmux=KEEP), write=written.append) == "tmux and the terminal"
    assert written == ["\x1bPtmux;\x1b\x1b]52;c;YQ==\x07\x1b\\"]


def test_what_is_too_long_for_the_terminal_needs_a_program(install):
    text = "x" * (MOST_TERMINAL_BYTES + 1)
    assert copy(text, install(X11, xclip=KEEP), write=[].append) == "xclip"
    with pytest.raises(UsageError, match="74,995 bytes are too many for the terminal; there is no display"):
        copy(text, {"PATH": ""}, write=[].append)


@pytest.mark.parametrize(
    ("display", "advice"),
    [(WAYLAND, "install wl-clipboard"), (X11, "install xclip or xsel"), (NOTHING, "there is no display")],
)
def test_without_a_program_it_is_said_what_to_install(install, display, advice):
    for failing in (lambda: copy("a", install(display), write=None), lambda: paste(install(display))):
        with pytest.raises(UsageError, match=advice):
            failing()


@pytest.mark.parametrize(
    ("display", "program"),
    [(WAYLAND, "wl_paste"), (X11, "xclip"), (X11, "xsel"), (NOTHING, "pbpaste"), (TMUX, "tmux")],
)
def test_text_is_pasted_by_the_displays_program(install, display, program):
    environment = install(display, **{program: r"printf 'one\r\ntwo\rthree\n\377'"})
    assert paste(environment) == "one\ntwo\nthree\n\ufffd"


def test_a_program_that_fails_leaves_it_to_the_next(install):
    environment = install(X11, xclip="exit 1", xsel="cat >copied; echo text")
    assert copy("a", environment, write=None) == "xsel"
    assert paste(environment) == "text\n"


def test_an_empty_clipboard_is_said(install):
    with pytest.raises(UsageError, match="`xclip` gave no text"):
        paste(install(X11, xclip="exit 1"))


def test_a_program_that_hangs_is_given_up(install, monkeypatch):
    monkeypatch.setattr(clipboard, "SECONDS", 0.1)
    environment = install(X11, xclip="exec sleep 60")
    with pytest.raises(UsageError, match="cannot copy"):
        copy("a", environment, write=None)
    with pytest.raises(UsageError, match="cannot paste"):
        paste(environment)


def test_a_program_that_stays_to_serve_the_clipboard_is_not_waited_for(install):
    assert copy("a", install(X11, xclip="cat >copied; sleep 5 &"), write=None) == "xclip"
