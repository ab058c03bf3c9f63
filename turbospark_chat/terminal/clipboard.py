"""The clipboard: written by the terminal itself (OSC 52) and by the display's own programs, read by those.

Each program gets a moment: one that waits for a display that has gone must not hold up the chat.
"""

import base64
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from turbospark_chat.errors import UsageError

SECONDS = 2.0  # that a clipboard program gets
MOST_TERMINAL_BYTES = 74_994  # terminals pass over longer ones: 100,000 with the encoding and its frame


@dataclass(frozen=True, slots=True)
class _Tool:
    """A way to the clipboard, there when the environment variable `needs` is (or any, where it is empty)."""

    needs: str
    copy: Sequence[str]
    paste: Sequence[str]
    package: str


_TOOLS: Final = (
    _Tool("WAYLAND_DISPLAY", ("wl-copy",), ("wl-paste", "--no-newline"), "wl-clipboard"),
    _Tool(
        "DISPLAY", ("xclip", "-selection", "clipboard"), ("xclip", "-selection", "clipboard", "-o"), "xclip"
    ),
    _Tool("DISPLAY", ("xsel", "-ib"), ("xsel", "-ob"), "xsel"),
    _Tool("", ("pbcopy",), ("pbpaste",), ""),  # macOS, where it is always there
    # Its buffer; -w has tmux hand it on to the terminal, even where it lets no program inside do so.
    _Tool("TMUX", ("tmux", "load-buffer", "-w", "-"), ("tmux", "save-buffer", "-"), ""),
)


def copy(text: str, environment: Mapping[str, str], *, write: Callable[[str], None] | None) -> str:
    """Put `text` on the clipboard by every way there is; return by which, in words.

    `write` sends an escape sequence to the terminal as it is; None where there is no terminal that takes any.

    Raises:
        UsageError: there is no way, or none that takes so long a text.
    """
    data = text.encode("utf-8", "replace")
    ways = [
        tool.copy[0]
        for tool in _usable(environment, lambda tool: tool.copy)
        if _write(tool.copy, data, environment)
    ]
    if write is not None and len(data) <= MOST_TERMINAL_BYTES:
        write(_terminal_sequence(data, is_in_tmux=bool(environment.get("TMUX"))))
        ways.append("the terminal")
    if ways:
        return " and ".join(ways)
    too_long = (
        f"{len(data):,} bytes are too many for the terminal" if write is not None else "no terminal takes it"
    )
    raise UsageError(f"cannot copy: {too_long}; {_advice(environment)}")


def paste(environment: Mapping[str, str]) -> str:
    """Return the text on the clipboard.

    Raises:
        UsageError: no program can read it, or it holds no text.
    """
    tools = _usable(environment, lambda tool: tool.paste)
    for tool in tools:
        data = _read(tool.paste, environment)
        if data is not None:
            return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    if tools:
        raise UsageError(f"cannot paste: `{tools[0].paste[0]}` gave no text; is there any on the clipboard?")
    raise UsageError(f"cannot paste: {_advice(environment)}, or paste by the terminal's own key")


def _usable(environment: Mapping[str, str], command: Callable[[_Tool], Sequence[str]]) -> list[_Tool]:
    return [
        tool
        for tool in _TOOLS
        if (not tool.needs or environment.get(tool.needs))
        and shutil.which(command(tool)[0], path=environment.get("PATH"))
    ]


def _write(command: Sequence[str], data: bytes, environment: Mapping[str, str]) -> bool:
    # Such a program stays, to serve what it was given: it must hold no pipe of ours, nor end by the chat's Ctrl-C.
    try:
        done = subprocess.run(
            command, input=data, env=environment, timeout=SECONDS, check=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _read(command: Sequence[str], environment: Mapping[str, str]) -> bytes | None:
    try:
        done = subprocess.run(
            command, env=environment, timeout=SECONDS, check=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _terminal_sequence(data: bytes, *, is_in_tmux: bool) -> str:
    sequence = f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\x07"
    if is_in_tmux:  # which hands on only what is wrapped, where `allow-passthrough` is on
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return sequence


def _advice(environment: Mapping[str, str]) -> str:
    packages = [tool.package for tool in _TOOLS if tool.package and environment.get(tool.needs)]
    return f"install {' or '.join(packages)}" if packages else "there is no display to ask for its clipboard"
