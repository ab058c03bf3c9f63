"""A text file that goes with a message: read, checked to be text, and framed so that a model sees where it ends."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turbospark_chat.errors import UsageError
from turbospark_chat.regular_file import read_regular_file

MOST_BYTES = 16_000_000  # beyond any context; reading more would only keep the user waiting for the refusal
_FRAMED = re.compile(r"[^\n]+:\n(?P<fence>`{3,})\n.*?^(?P=fence)\n", re.DOTALL | re.MULTILINE)
_BYTES_LOOKED_AT = 8192  # for a NUL, which no text holds


@dataclass(frozen=True, slots=True)
class Attachment:
    """A name and a text."""

    name: str
    text: str

    @property
    def framed(self) -> str:
        """The text between fences that it does not contain itself, under its name."""
        longest = max((len(run) for run in re.findall("`+", self.text)), default=0)
        fence = "`" * max(3, longest + 1)
        end = "" if self.text.endswith("\n") or not self.text else "\n"
        return f"{self.name}:\n{fence}\n{self.text}{end}{fence}\n"


def read_attachment(path: str) -> Attachment:
    """Return a file's text under its name; bytes that are no UTF-8 become U+FFFD, a byte order mark goes.

    Raises:
        UsageError: it cannot be read, is too large, or is no text.
    """
    file = Path(path).expanduser()
    try:
        data = read_regular_file(file, most_bytes=MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot read it: {error.strerror or error}; give a text file") from error
    if b"\0" in data[:_BYTES_LOOKED_AT]:
        raise UsageError(f"{path}: it is not text; give a text file")
    return Attachment(file.name, data.decode("utf-8-sig", "replace").replace("\r\n", "\n"))


def without_attachments(message: str) -> str:
    """Return what a message says behind the files in front of it; all of it where it is files alone."""
    rest = message
    while framed := _FRAMED.match(rest):
        rest = rest[framed.end() :].lstrip("\n")
    return rest if rest.strip() else message


def join_attachments(attachments: Sequence[Attachment], message: str) -> str:
    """Return a message with files in front of it."""
    return "\n".join([*(attachment.framed for attachment in attachments), message])
