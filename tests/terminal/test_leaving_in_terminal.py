"""A conversation that is left while its model's file, which is read for that first, is far too long to be read."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal_driver import (
    CTRL_C,
    CTRL_D,
    ENTER,
    GREEDY,
    LETTERS,
    Pipes,
    Terminal,
    leave,
    objects,
    open_chat,
)

from turbospark_chat.models.state_file import StoredState, write_state
from turbospark_chat.settings import Locations

FLAGS = (*LETTERS, "--max-tokens", "6")
STOPPED = "warning: what was computed for conversation 1 is not kept:"
LENGTH = 2**42  # takes hours


@pytest.fixture
def long_path(tiny_path: Path, tmp_path: Path) -> Path:
    """Return a model with a hole behind its weights, which takes no room on the disk."""
    path = tmp_path / "long.gguf"
    shutil.copy(tiny_path, path)
    try:
        os.truncate(path, LENGTH)
    except OSError:
        pytest.skip("the disk has no files of that length")
    return path


@pytest.fixture
def chat(long_path: Path) -> Iterator[Terminal]:
    with open_chat(long_path, *FLAGS) as chat:
        chat.ask("one")
        yield chat


def states() -> list[Path]:
    """Return the files of states, whole or not."""
    folder = Locations.of_user().states
    return list(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("line", ["/clear", "/new", "/load 1"])
def test_the_chat_stays_alive_and_ctrl_c_ends_the_wait(chat: Terminal, line: str) -> None:
    chat.say(line)
    chat.wait_for(lambda seen: "working · Ctrl-C stops" in seen.bar)
    chat.type("two")
    chat.wait_for(lambda seen: seen.input == "two")
    chat.resize(20, 90)
    chat.type(ENTER + "/system Be brief." + ENTER + "/history" + ENTER + "thr")
    chat.wait_for(lambda seen: "3 queued" in seen.bar and seen.input == "thr")
    chat.type(CTRL_C)
    history = "system: Be brief.\n1 user: " + ("one" if line == "/load 1" else "two")
    seen = chat.wait_for(lambda seen: history in seen.text and STOPPED in seen.text and seen.is_idle)
    assert seen.input == "thr"
    assert states() == []


def test_ctrl_c_ends_the_wait_for_what_was_stored_too(chat: Terminal) -> None:
    path = Locations.of_user().states / "1.state"
    write_state(path, StoredState({}, (1, 2), {}))
    chat.say("/load 1")
    chat.wait_for(lambda seen: "working" in seen.bar)
    chat.type(CTRL_C)
    chat.wait_for(lambda seen: seen.is_idle and STOPPED in seen.text and "computed anew:" in seen.text)


def test_leaving_the_chat_meanwhile_is_at_once(chat: Terminal) -> None:
    chat.say("/clear")
    chat.wait_for(lambda seen: "working" in seen.bar)
    assert "Traceback" not in leave(chat)
    assert states() == []


def test_at_the_end_of_the_chat_ctrl_c_ends_the_wait(chat: Terminal) -> None:
    chat.type(CTRL_D)
    chat.wait_for(lambda seen: seen.bar == "")
    chat.watch(0.3)
    chat.type(CTRL_C)
    assert chat.wait_for_end() == 130
    assert "Traceback" not in chat.picture.text
    assert states() == []


def test_between_pipes_lines_keep_their_order_and_an_interrupt_ends_the_wait(long_path: Path) -> None:
    with Pipes("chat", "-m", long_path, "--json", *GREEDY, *FLAGS) as pipes:
        pipes.say("one", "/clear", "/history", "two")
        first = pipes.read_line()
        assert not pipes.has_more(0.5)
        pipes.interrupt()
        told = objects(first + b"".join(pipes.read_line() for _ in range(3)))
        assert [one.get("command", one.get("turn")) for one in told] == [1, "/clear", "/history", 1]
        assert told[1]["answer"].startswith("clearing 1 turn: ")
        assert told[2]["answer"] == "nothing said yet"
        pipes.close_stdin()
        assert not pipes.has_more(0.5)
        pipes.interrupt()
        code, out, err = pipes.end()
    assert (code, out) == (130, b"")
    assert err.decode().startswith(STOPPED) and err.count(b"\n") == 1
    assert states() == []
