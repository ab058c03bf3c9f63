"""What a script is told, line by line: messages and commands, as text or as NDJSON objects. Knows no session."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, TextIO

from turbospark_chat.errors import UsageError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # json joins those that belong together


@dataclass(frozen=True, slots=True)
class Typed:
    """A line as it could be typed: a message, or a command where it begins with a slash."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A message whatever it begins with."""

    text: str


Input = Typed | Content


def read_lines(stream: BinaryIO, *, prompt: str, prompt_stream: TextIO) -> Iterator[str]:
    """Yield the lines that hold anything, as text; bytes that are no UTF-8 become U+FFFD, a byte order mark goes.

    `prompt` is written to `prompt_stream` before each line, for a person at a terminal without a screen.
    """
    while True:
        prompt_stream.write(prompt)
        prompt_stream.flush()
        raw = stream.readline()
        if not raw:
            prompt_stream.write("\n" if prompt else "")
            return
        line = raw.decode("utf-8-sig", "replace").rstrip("\r\n")
        if line.strip():
            yield line


def read_input(line: str, *, is_json: bool) -> Input:
    """Return what a line says. With `is_json` one that begins with a brace is an object with `content` or `command`.

    >>> read_input('{"content": "/etc is a folder"}', is_json=True)
    Content(text='/etc is a folder')
    >>> read_input('/undo', is_json=True)
    Typed(text='/undo')

    Half of a character's two escapes is U+FFFD, as bytes that are no UTF-8 are.

    Raises:
        UsageError: it begins with a brace and is no such object, or its content is blank.
    """
    if not is_json or not line.lstrip().startswith("{"):
        return Typed(line)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f'{line[:60]!r} is no JSON object: {error}; give {{"content": TEXT}}') from error
    content, command = value.get("content"), value.get("command")
    if isinstance(content, str) and command is None and value.get("role", "user") == "user":
        if not content.strip():  # who asked waits for an answer, so it is not passed over as a blank line is
            raise UsageError(f"{line[:60]!r} has a blank content, which is no message; give it a text")
        return Content(_LONE_SURROGATE.sub("\ufffd", content))
    if isinstance(command, str) and content is None and command.startswith("/") and "\n" not in command:
        return Typed(_LONE_SURROGATE.sub("\ufffd", command))
    raise UsageError(
        f'{line[:60]!r} says neither {{"content": TEXT}} nor {{"command": "/NAME ..."}}; give one of them'
    )
