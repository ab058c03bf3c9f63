"""Text that arrives in pieces: rows go out once they are whole, the row being written stays live.

Knows columns, not the screen. What has gone out is never asked for again, so it may scroll away.
"""

from rich.cells import split_graphemes


class LiveText:
    """Splits a stream into finished rows and one live row.

    Widths are those of whole graphemes (a family emoji takes two columns), measured on the whole row each time,
    since the code point that widens or joins one may come later.
    """

    def __init__(self) -> None:
        self._row = ""

    @property
    def row(self) -> str:
        """The row being written."""
        return self._row

    def push(self, text: str, *, width: int) -> str:
        """Add text; return the rows that are finished, each ending in a newline, or nothing.

        A line wider than `width` columns is broken at its last space, or within a word that has no room at all.
        """
        *lines, last = (self._row + text).expandtabs(8).split("\n")
        rows = [row for line in lines for row in _wrap(line, max(width, 1))]
        *full, self._row = _wrap(last, max(width, 1))
        return "".join(f"{row}\n" for row in (*rows, *full))

    def finish(self) -> str:
        """Return the last row, without a newline."""
        row, self._row = self._row, ""
        return row


def _wrap(line: str, width: int) -> list[str]:
    rows = []
    while (cut := _overflow(line, width)) is not None:
        rows.append(line[:cut].rstrip(" "))
        line = line[cut:]
    return [*rows, line]


def _overflow(line: str, width: int) -> int | None:
    """Return where to break a line that is too wide; None for one that fits. Spaces at the margin take no room."""
    spans, total = split_graphemes(line)
    if total <= width:
        return None
    used = 0
    for start, end, cells in spans:
        used += cells
        if used > width and line[start:end] != " ":
            space = line.rfind(" ", len(line) - len(line.lstrip(" ")), start)
            return space + 1 if space >= 0 else max(start, 1)
    return None
