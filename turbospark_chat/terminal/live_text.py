"""Text that arrives in pieces: lines go out once they are whole, the line being written stays live.

Knows columns, not the screen. What has gone out is never asked for again, so it may scroll away.
"""

from prompt_toolkit.utils import get_cwidth


class LiveText:
    """Splits a stream into finished lines and one live line."""

    def __init__(self) -> None:
        self._line = ""

    @property
    def line(self) -> str:
        """The line being written."""
        return self._line

    def push(self, text: str, *, width: int, rows: int) -> str:
        """Add text; return what is finished, ending in a newline, or nothing.

        A line that outgrows `rows` rows of `width` columns is broken after the last space that leaves the live part
        smaller, so that the live part always fits its place.
        """
        finished, newline, self._line = (self._line + text).expandtabs(8).rpartition("\n")
        finished += newline
        while (cut := _overflow(self._line, max(width, 2) * max(rows, 1))) is not None:
            finished += self._line[:cut].rstrip(" ") + "\n"
            self._line = self._line[cut:]
        return finished

    def finish(self) -> str:
        """Return the last line, without a newline."""
        line, self._line = self._line, ""
        return line


def _overflow(line: str, cells: int) -> int | None:
    """Return where to break a line wider than `cells`: after a space if it has one, else at the last fitting place."""
    width = 0
    for index, character in enumerate(line):
        width += get_cwidth(character)
        if width > cells:
            space = line.rfind(" ", 1, index)
            return space + 1 if space > 0 else max(index, 1)
    return None
