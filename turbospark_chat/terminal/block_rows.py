"""Blocks of Markdown one under another: what stands between them, and what goes on from one to the next.

Knows what was shown last, not what comes.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbospark_chat.terminal.live_text import LiveText
from turbospark_chat.terminal.markdown_blocks import Block, BlockKind
from turbospark_chat.terminal.markdown_painter import MarkdownPainter

# Code by which the next is coloured: what began earlier, as a long string may, is not seen.
CONTEXT_LINES = 20
CONTEXT_CHARACTERS = 800


class BlockRows:
    """Makes rows of blocks in their order. A `fork` shows what may still change, and leaves this one as it is."""

    def __init__(self, painter: MarkdownPainter) -> None:
        self._painter = painter
        self._last: Block | None = None
        self._code: tuple[str, ...] = ()  # lines
        self._plain = LiveText()
        self._plain_block: Block | None = None  # what the next plain row belongs to

    def fork(self) -> "BlockRows":
        """Return a copy that knows the same."""
        fork = copy.copy(self)
        fork._plain = self._plain.fork()
        return fork

    def put(self, blocks: Iterable[Block], *, width: int) -> list[str]:
        """Return the rows of the next blocks, with those between them."""
        rows: list[str] = []
        for block in _code_joined(blocks):
            if block.is_start:
                rows += self.end(width=width)
                self._code = ()
            if self._last is not None and (block.is_start or block.kind is BlockKind.TABLE):
                rows += self._gap(self._last, block, width=width)
            if block.kind is BlockKind.PLAIN:
                rows += self._plain_rows(block, width=width)
            else:
                rows += self._painter.paint(block, width=width, before=self._code)
            if block.kind is BlockKind.CODE:
                self._code = _last_lines([*self._code, *block.text.split("\n")])
            self._last = block
        return rows

    def end(self, *, width: int) -> list[str]:
        """Return the row being written, if there is one."""
        block, self._plain_block = self._plain_block, None
        row = self._plain.finish()
        return self._painter.frame(block, [row], width=width) if block and row else []

    def _plain_rows(self, piece: Block, *, width: int) -> list[str]:
        block = self._plain_block or piece
        rows = self._plain.push(piece.text, width=self._painter.room(block, width=width)).split("\n")[:-1]
        self._plain_block = replace(block, n_begun=0) if rows else block
        return self._painter.frame(block, rows, width=width)

    def _gap(self, last: Block, block: Block, *, width: int) -> list[str]:
        """Return the row between two blocks. Within a list there is one only where the source has one."""
        shared = [old for old, new in zip(last.containers, block.containers, strict=False) if old is new]
        n_shared = len(shared)
        siblings = (*last.containers[n_shared:][:1], *block.containers[n_shared:][:1])
        are_items = len(siblings) == 2 and all(container.marker for container in siblings)
        is_in_item = bool(shared) and bool(shared[-1].marker)
        is_tight = not block.follows_blank and (are_items or is_in_item)
        return [] if is_tight else [self._painter.gap(shared, width=width)]


def _last_lines(code: list[str]) -> tuple[str, ...]:
    """Return so many of the last lines that colouring them again costs little."""
    kept = code[-CONTEXT_LINES:]
    while sum(map(len, kept)) > CONTEXT_CHARACTERS:
        del kept[0]
    return tuple(kept)


def _code_joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks, lines of the same code as one: they are coloured at once."""
    code: list[Block] = []
    for block in blocks:
        if code and (block.is_start or block.kind is not BlockKind.CODE):
            yield _merged(code)
            code = []
        if block.kind is BlockKind.CODE:
            code.append(block)
        else:
            yield block
    if code:
        yield _merged(code)


def _merged(code: list[Block]) -> Block:
    return replace(code[0], text="\n".join(line.text for line in code))
