"""Replies on another stream than the screen: stdout, where that is a pipe or a file. Knows no screen."""

import os
import stat
from typing import TextIO


class ReplyStream:
    """Passes replies on as they are, each ended by a newline."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_line_open = False

    @property
    def is_pipe(self) -> bool:
        """Whether what is written may come back to this terminal, as through `tee`."""
        try:
            return stat.S_ISFIFO(os.fstat(self._stream.fileno()).st_mode)
        except OSError:  # no file at all
            return False

    def write(self, text: str) -> None:
        """Write a part of a reply at once."""
        self._is_line_open = True
        self._stream.write(text)
        self._stream.flush()

    def end(self) -> bool:
        """End the reply; return whether any of it was written."""
        was_open, self._is_line_open = self._is_line_open, False
        if was_open:
            self._stream.write("\n")
            self._stream.flush()
        return was_open
