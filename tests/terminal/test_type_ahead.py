"""Keys typed before the screen is there, through a real pseudo-terminal."""

import sys
import termios
from contextlib import suppress
from pathlib import Path

import pexpect
import pytest
from terminal_driver import TS, environment

PROGRAM = """
import os, sys, termios, tty
from turbospark_chat.terminal.type_ahead import type_ahead
before = termios.tcgetattr(0)
with type_ahead():
    print("loading", flush=True)
    os.read(3, 1)
print("same" if termios.tcgetattr(0) == before else "other", flush=True)
tty.setraw(0, termios.TCSANOW)
print(repr(os.read(0, 100)), flush=True)
"""


@pytest.fixture
def child(tmp_path: Path) -> pexpect.spawn:
    """A program that stops loading when it is told to by a pipe of its own."""
    fifo = tmp_path / "go"
    shell = f'mkfifo "{fifo}"; exec "{sys.executable}" -c \'{PROGRAM}\' 3<>"{fifo}"'
    return pexpect.spawn("/bin/sh", ["-c", shell], encoding="utf-8", timeout=30)


def test_enter_stays_enter_nothing_is_echoed_and_the_terminal_is_as_it_was(
    child: pexpect.spawn, tmp_path: Path
) -> None:
    child.expect("loading")
    child.send("hello\r")
    child.expect(pexpect.TIMEOUT, timeout=0.3)
    assert "hello" not in child.before
    (tmp_path / "go").write_bytes(b"x")
    child.expect("same")
    child.expect_exact(repr(b"hello\r"))


def test_from_loading_on_the_chat_never_lets_the_terminal_change_enter(tiny_path: Path) -> None:
    chat = pexpect.spawn(TS, ["chat", "-m", str(tiny_path)], env=environment(), timeout=30)
    shown, was_kept = b"", []
    while b" \xc2\xb7 ctx " not in shown:  # the status bar: the screen has taken over
        was_kept.append(not termios.tcgetattr(chat.child_fd)[0] & termios.ICRNL)
        with suppress(pexpect.TIMEOUT):
            shown += chat.read_nonblocking(1000, timeout=0)
    assert was_kept == sorted(was_kept) and was_kept[-1]
    chat.close(force=True)
