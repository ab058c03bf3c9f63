"""Blocks of Markdown as rows of a terminal, no wider than it: what contains a block stands before its rows.

Knows one block at a time. Every character of it is shown but for Markdown's own marks; rows have neither a background
nor spaces at their end. rich's own Markdown drops HTML, link definitions and a row's extra cells, and fills rows up.
"""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from turbospark_chat.terminal import markdown_lines
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.code_painter import COLOR_THEME, CodePainter, is_language
from turbospark_chat.terminal.markdown_blocks import Block, BlockKind, Container
from turbospark_chat.terminal.markdown_inline import inline_text
from turbospark_chat.terminal.wrapping import wrap

MOST_RULE_COLUMNS = 40
LEAST_CELL_COLUMNS = 2  # the widest character must fit
CELL_GAP = 2  # columns between two cells, one of which rich leaves to a line
_QUOTE_MARK = "▌ "


class MarkdownPainter:
    """Paints blocks. `code_theme` is one of rich's or pygments'."""

    def __init__(self, painter: Painter, *, code_theme: str = COLOR_THEME) -> None:
        self._painter = painter
        self._code = CodePainter(theme=code_theme)

    def paint(self, block: Block, *, width: int, before: Sequence[str] = ()) -> list[str]:
        """Return a block's rows. `before` are lines of code, by which those of the block are coloured."""
        room = self.room(block, width=width)
        if block.kind is BlockKind.CODE:
            rows = self._code_rows(block, before, width=room)
        elif block.kind is BlockKind.TABLE:
            rows = self._table_rows(block.text.split("\n"), width=room)
        elif block.kind is BlockKind.RULE:
            rows = [self._painter.style("─" * min(room, MOST_RULE_COLUMNS), "markdown.hr")]
        else:
            text = Text(block.text) if block.kind is BlockKind.PLAIN else inline_text(block.text)
            if block.kind is BlockKind.HEADING:
                text.style = f"markdown.h{block.level}"
            rows = self._wrapped(text, width=room)
        return self.frame(block, rows, width=width)

    def room(self, block: Block, *, width: int) -> int:
        """Return how many columns are left to a block's own rows."""
        return width if _is_cramped(block, width) else max(width - _columns(block.containers), 1)

    def frame(self, block: Block, rows: Sequence[str], *, width: int) -> list[str]:
        """Return a block's own rows behind the marks of its containers: the new ones are marked on the first row.

        Where there is no room for both, the new marks get a row of their own.
        """
        kept = block.containers[: len(block.containers) - block.n_begun]
        begun = block.containers[len(kept) :]
        if _is_cramped(block, width):
            marks = Text(" ".join(container.marker for container in begun if container.marker))
            return [*(self._wrapped(marks, width=width) if marks else ()), *rows]
        first = "".join((*map(self._old_mark, kept), *map(self._new_mark, begun)))
        later = "".join(map(self._old_mark, block.containers))
        framed = [(later if index else first) + row for index, row in enumerate(rows)]
        return [row if own else row.rstrip(" ") for row, own in zip(framed, rows, strict=True)]

    def gap(self, containers: Sequence[Container], *, width: int) -> str:
        """Return the row between two blocks that the same containers hold."""
        return self.frame(Block(BlockKind.PLAIN, "", tuple(containers)), [""], width=width)[0]

    def _new_mark(self, container: Container) -> str:
        if not container.marker:
            return self._old_mark(container)
        kind = "bullet" if container.marker in "-+*" else "number"
        return self._painter.style(_shown(container), f"markdown.item.{kind}") + " "

    def _old_mark(self, container: Container) -> str:
        if container.marker:
            return " " * _columns([container])
        return self._painter.style(_QUOTE_MARK.rstrip(), "markdown.block_quote") + " "

    def _wrapped(self, text: Text, *, width: int) -> list[str]:
        return [self._painter.row(row) for row in wrap(text, width=width)]

    def _code_rows(self, block: Block, before: Sequence[str], *, width: int) -> list[str]:
        language = block.info.partition(" ")[0]
        head = "".join(f"{line}\n" for line in before)
        text = self._code.paint(head + block.text, language=language)[len(head) :]
        rows = self._wrapped(text, width=width)
        if not block.is_start or not block.info or is_language(block.info):
            return rows
        return [*self._wrapped(Text(block.info, "markdown.code_info"), width=width), *rows]

    def _table_rows(self, lines: Sequence[str], *, width: int) -> list[str]:
        head, delimiter, *body = (markdown_lines.cells(line) for line in lines)
        n_columns = max(map(len, (head, *body)))
        if n_columns * (LEAST_CELL_COLUMNS + CELL_GAP) - CELL_GAP > width:
            return self._wrapped(Text("\n".join(lines)), width=width)
        table = Table(
            box=SIMPLE, show_edge=False, padding=(0, CELL_GAP - 1, 0, 0), pad_edge=False,
            border_style="markdown.table.border", header_style="markdown.table.header",
        )  # fmt: skip
        for index in range(n_columns):
            mark = delimiter[index] if index < len(delimiter) else ""
            table.add_column(
                inline_text(head[index]) if index < len(head) else "",
                justify=_JUSTIFY[mark[:1] == ":", mark[-1:] == ":"],
                overflow="fold", min_width=LEAST_CELL_COLUMNS,
            )  # fmt: skip
        for row in body:
            table.add_row(*map(inline_text, row))
        return self._painter.rows(table, width=width)


_JUSTIFY: dict[tuple[bool, bool], JustifyMethod] = {
    (False, False): "left", (True, False): "left", (False, True): "right", (True, True): "center",
}  # fmt: skip


def _shown(container: Container) -> str:
    """Return a list item's marker as it is drawn: numbers as they were written."""
    return "•" if container.marker in "-+*" else container.marker


def _columns(containers: Sequence[Container]) -> int:
    return sum(len(_shown(item)) + 1 if item.marker else len(_QUOTE_MARK) for item in containers)


def _is_cramped(block: Block, width: int) -> bool:
    """Whether containers would take more than half of the screen."""
    return 2 * _columns(block.containers) > width
