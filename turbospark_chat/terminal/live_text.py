"""Text that arrives in pieces: rows go out once they are whole, the row being written stays live.

Knows columns, not the screen. What has gone out is never asked for again, so it may scroll away. Every character is
taken by itself, so it makes no difference into which pieces a text was cut.
"""

from rich.cells import split_graphemes

TAB_COLUMNS = 8
MOST_JOINED = 32  # code points of one grapheme; Unicode's stream-safe text allows 30 marks in a row


class LiveText:
    """Splits a stream into finished rows and one live row.

    Widths are rich's, of whole graphemes: a family emoji or a flag takes two columns. The code point that widens or
    joins the last grapheme may come later, so that one stays open until another begins.
    """

    def __init__(self) -> None:
        self._graphemes: list[tuple[str, int]] = []  # text and cells
        self._cells = 0

    @property
    def row(self) -> str:
        """The row being written, without spaces at its end: one past the margin would begin another."""
        return _text(self._graphemes).rstrip(" ")

    def fork(self) -> "LiveText":
        """Return a copy that goes its own way."""
        fork = LiveText()
        fork._graphemes, fork._cells = self._graphemes.copy(), self._cells
        return fork

    def push(self, text: str, *, width: int) -> str:
        """Add text; return the rows that are finished, each ending in a newline, or nothing.

        A line wider than `width` columns is broken after its last space or beside its last wide character, and
        within a word where it has neither. Spaces at the break go.
        """
        rows: list[str] = []
        for character in text:
            if character == "\n":
                rows.append(self.finish())
                continue
            spaces = " " * (TAB_COLUMNS - self._cells % TAB_COLUMNS)
            for shown in spaces if character == "\t" else character:
                self._add(shown, max(width, 1))
            rows += self._take_full_rows(max(width, 1))
        return "".join(f"{row}\n" for row in rows)

    def finish(self) -> str:
        """Return the last row, without a newline."""
        row, self._graphemes, self._cells = self.row, [], 0
        return row

    def _add(self, character: str, width: int) -> None:
        """Put a character into the row's last grapheme or after it. Past the margin one space stands for all."""
        last = self._graphemes[-1][0] if self._graphemes else ""
        if character == last == " " and self._cells > width:
            return
        if character.isascii():  # joins nothing before it
            cells = 1
        else:
            if last and _joins(last, character):
                self._cells -= self._graphemes.pop()[1]
                character = last + character
            cells = split_graphemes(character)[1]
        self._graphemes.append((character, cells))
        self._cells += cells

    def _take_full_rows(self, width: int) -> list[str]:
        rows = []
        while cut := self._overflow(width):
            rows.append(_text(self._graphemes[:cut]).rstrip(" "))
            self._cells -= sum(cells for _, cells in self._graphemes[:cut])
            del self._graphemes[:cut]
        return rows

    def _overflow(self, width: int) -> int:
        """Return how many graphemes make a full row; 0 while all of them fit. Indentation is no place to break."""
        if self._cells <= width:
            return 0
        used = cut = 0
        has_begun = False
        for index, (text, cells) in enumerate(self._graphemes):
            if cells == 2:
                cut = index
            used += cells
            if used > width and text != " " and index > 0:
                return cut or index
            has_begun |= text != " "
            if cells == 2 or (has_begun and text == " "):
                cut = index + 1
        return 0


def _text(graphemes: list[tuple[str, int]]) -> str:
    return "".join(text for text, _ in graphemes)


def _joins(last: str, character: str) -> bool:
    """Whether a character belongs to the grapheme before it; rich leaves flags in halves."""
    if len(last) >= MOST_JOINED:
        return False
    is_flag = len(last) == 1 and _is_regional(last) and _is_regional(character)
    return is_flag or len(split_graphemes(last + character)[0]) == 1


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
