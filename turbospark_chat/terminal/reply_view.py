"""A reply as it arrives: rows that are finished, and those of the block still being written.

Knows columns and rows, not the screen. What has gone out is never asked for again, so it may scroll away.
"""

from collections.abc import Sequence

from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.block_rows import BlockRows
from turbospark_chat.terminal.code_painter import COLOR_THEME
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.live_text import LiveText
from turbospark_chat.terminal.markdown_blocks import BlockSplitter
from turbospark_chat.terminal.markdown_painter import MarkdownPainter

_TABLE_HEIGHTS = 3  # that a table may need before it is parted


class ReplyView:
    """Text in, rows out: as Markdown, or as it is. The screen may change its size between any two calls."""

    def __init__(self, painter: Painter, *, is_markdown: bool, code_theme: str = COLOR_THEME) -> None:
        self._blocks = BlockSplitter() if is_markdown else None
        self._rows = BlockRows(MarkdownPainter(painter, code_theme=code_theme))
        self._plain = LiveText()
        self._drawn: tuple[int, list[str]] | None = None  # the live rows of a width

    def push(self, text: str, *, width: int, height: int) -> str:
        """Add text; return the rows that are finished, each ending in a newline, or nothing.

        A block that would need more than `height` rows goes out in parts, a table, whose parts look torn, later.
        """
        text = harmless(text)
        self._drawn = None
        if self._blocks is None:
            return self._plain.push(text, width=width)
        blocks = self._blocks.push(text)
        most = height * _TABLE_HEIGHTS if self._blocks.is_in_table else height
        if _rows_needed(self._blocks.open_lines, width=max(width, 1)) > most:
            blocks += self._blocks.give_way()
        return _as_lines(self._rows.put(blocks, width=width))

    def live(self, *, width: int, height: int) -> str:
        """Return the last `height` rows of the open block, without a last newline."""
        if self._blocks is None:
            return self._plain.row
        if self._drawn is None or self._drawn[0] != width:
            fork = self._rows.fork()
            self._drawn = width, fork.put(self._blocks.preview(), width=width) + fork.end(width=width)
        return "\n".join(self._drawn[1][-max(height, 1) :])

    def finish(self, *, width: int) -> str:
        """Return the rows of what was still open."""
        self._drawn = None
        if self._blocks is None:
            row = self._plain.finish()
            return _as_lines([row] if row else [])
        return _as_lines(self._rows.put(self._blocks.finish(), width=width) + self._rows.end(width=width))


def _rows_needed(lines: Sequence[str], *, width: int) -> int:
    """Return about how many rows some lines take: no more than they do, but for marks that are not shown."""
    return sum(len(line) // width + 1 for line in lines)


def _as_lines(rows: Sequence[str]) -> str:
    return "".join(f"{row}\n" for row in rows)
