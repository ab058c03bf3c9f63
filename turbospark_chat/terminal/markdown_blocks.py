"""Markdown that arrives in pieces, split into the blocks it is made of: each comes out once it has ended.

CommonMark's own algorithm, a line at a time, so the cost is linear in the text. Knows text only, no screen. A block is
a leaf (a paragraph, a table, a line of code) and the quotes and list items around it: those never have to be kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import Enum, auto

from turbospark_chat.terminal import markdown_lines as lines

MOST_UNDECIDED = 256  # characters of a line after which its beginning decides what it is, ended or not
TAB_COLUMNS = 4
HEAD_LINES = 2  # of a table


class BlockKind(Enum):
    """What a block is. CODE comes a line at a time; PLAIN is text in pieces, shown as it was written."""

    PARAGRAPH = auto()
    HEADING = auto()
    TABLE = auto()
    CODE = auto()
    RULE = auto()
    PLAIN = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """A list item, by its marker, or a quote, which has none. `column` is where its content begins in the source."""

    marker: str
    column: int


@dataclass(frozen=True, slots=True)
class Block:
    """A leaf, or a part of one, without the marks of what contains it.

    The last `n_begun` containers begin with this block. `is_start` is False for what goes on from an earlier block.
    `level` is a heading's, `info` is a code fence's.
    """

    kind: BlockKind
    text: str
    containers: tuple[Container, ...] = ()
    n_begun: int = 0
    follows_blank: bool = False
    is_start: bool = True
    level: int = 0
    info: str = ""


@dataclass(slots=True)
class _Leaf:
    kind: BlockKind
    lines: list[str]
    n_begun: int
    follows_blank: bool
    level: int = 0
    info: str = ""
    fence: str = ""  # of code; what is only indented has none
    fence_indent: int = 0
    n_blank: int = 0  # lines of indented code, which count only if more code follows
    is_shown: bool = False  # a part of it has come out
    is_opening: bool = False  # the line of the fence itself is not over
    is_one_line: bool = False  # it ends with its line, though it is plain


class BlockSplitter:
    """Takes text, gives the blocks that have ended; `preview` gives the open rest. Any cut gives the same blocks."""

    def __init__(self) -> None:
        self._containers: list[Container] = []
        self._n_begun = 0  # containers, from the outermost, that hold a leaf by now
        self._leaf: _Leaf | None = None
        self._partial = ""  # the line being written, while it may be anything
        self._is_decided = False  # it is a part of the leaf already
        self._follows_blank = False
        self._closed: list[Block] = []

    @property
    def open_lines(self) -> list[str]:
        """What has not come out yet, without what contains it."""
        return [*(self._leaf.lines if self._leaf else ()), self._partial]

    @property
    def is_in_table(self) -> bool:
        """Whether what has not come out yet is a table."""
        return self._leaf is not None and self._leaf.kind is BlockKind.TABLE

    def push(self, text: str) -> list[Block]:
        """Add text; return the blocks that have ended."""
        first, *others = text.split("\n")
        self._take(first)
        for line in others:
            self._end_line()
            self._take(line)
        return self._drain()

    def finish(self) -> list[Block]:
        """Return what was still open, as if the text ended here."""
        if self._partial or self._is_decided:
            self._end_line()
        self._close_to(0)
        return self._drain()

    def preview(self) -> list[Block]:
        """Return the open blocks as they are so far. A line of which only marks are there may be left out."""
        fork = copy.copy(self)
        fork._containers, fork._leaf = self._containers.copy(), copy.copy(self._leaf)
        if fork._leaf:
            fork._leaf.lines = fork._leaf.lines.copy()
        fork._closed = []
        if lines.is_marks_only(fork._partial):
            fork._partial = ""
        return fork.finish()

    def give_way(self) -> list[Block]:
        """Return what is there of an open block, which goes on in another of its kind, or as plain text."""
        leaf = self._leaf
        if leaf is None or leaf.kind is BlockKind.PLAIN:
            return []
        whole = len(leaf.lines) - self._is_decided
        if leaf.kind is BlockKind.CODE:
            self._put_code(leaf)
        elif leaf.kind is BlockKind.TABLE and whole > HEAD_LINES:
            self._emit(leaf, "\n".join(leaf.lines[:whole]))
            del leaf.lines[HEAD_LINES:whole]
        else:
            repeated = HEAD_LINES if leaf.kind is BlockKind.TABLE and leaf.is_shown else 0
            text = "\n".join(leaf.lines[repeated:]) + ("" if self._is_decided else "\n")
            leaf.is_one_line = leaf.kind is BlockKind.HEADING
            leaf.kind, leaf.lines = BlockKind.PLAIN, []
            self._emit(leaf, text)
        return self._drain()

    def _drain(self) -> list[Block]:
        closed, self._closed = self._closed, []
        return closed

    # Lines

    def _take(self, text: str) -> None:
        """Add a part of a line."""
        if self._is_decided:
            self._extend(text)
            return
        self._partial += text
        if len(self._partial) > MOST_UNDECIDED:
            start, rest = self._partial[:MOST_UNDECIDED], self._partial[MOST_UNDECIDED:]
            self._begin_line(start)
            self._partial, self._is_decided = "", True
            self._extend(rest)

    def _extend(self, text: str) -> None:
        """Add to a line that has been sorted already."""
        text = text.replace("\t", " " * TAB_COLUMNS)
        leaf = self._leaf or self._open(BlockKind.PARAGRAPH, "")
        if leaf.is_opening:
            leaf.info += text
        elif leaf.kind is BlockKind.PLAIN:
            self._emit(leaf, text)
        elif leaf.lines:
            leaf.lines[-1] += text
        else:
            leaf.lines.append(text)

    def _end_line(self) -> None:
        if not self._is_decided:
            self._begin_line(self._partial)
        self._partial, self._is_decided = "", False
        leaf = self._leaf
        if leaf is None:
            return
        if leaf.kind is BlockKind.HEADING or leaf.is_one_line:
            self._close_leaf()
        elif leaf.kind is BlockKind.PLAIN:
            self._emit(leaf, "\n")
        elif leaf.kind is BlockKind.CODE and not leaf.is_opening:
            self._put_code(leaf)
        leaf.is_opening = False

    def _begin_line(self, line: str) -> None:
        """Sort a line: what goes on, what ends, what begins."""
        depth, rest = self._match(line.expandtabs(TAB_COLUMNS))
        is_inside = depth == len(self._containers)
        leaf = self._leaf
        if is_inside and leaf and leaf.kind is BlockKind.CODE and self._goes_on_as_code(leaf, rest):
            return
        if not rest.strip(" "):
            self._close_to(depth)
            self._follows_blank = True
            return
        is_text = leaf is not None and leaf.kind in (BlockKind.PARAGRAPH, BlockKind.PLAIN)
        if is_inside and leaf and leaf.kind is BlockKind.PARAGRAPH and self._turns(leaf, rest):
            return
        while content := self._open_container(rest, depth, may_not_interrupt=is_inside and is_text):
            rest, depth, is_inside, is_text = rest[content:], depth + 1, False, False
        if not rest.strip(" ") or self._open_leaf(rest, depth):
            return
        if self._leaf and self._goes_on_as_text(self._leaf, rest, is_inside=is_inside):
            return
        self._close_to(depth)
        if lines.indent(rest) >= lines.CODE_COLUMNS:
            self._open(BlockKind.CODE, rest[lines.CODE_COLUMNS :])
        else:
            self._open(BlockKind.PARAGRAPH, rest)

    def _match(self, line: str) -> tuple[int, str]:
        """Return how many containers a line goes on in, and the line without their marks."""
        for depth, container in enumerate(self._containers):
            if not container.marker:
                column = lines.quote(line)
            elif line.strip(" "):
                column = container.column if lines.indent(line) >= container.column else 0
            else:  # an item may begin with one blank line, and goes on over any later
                is_empty = self._n_begun <= depth == len(self._containers) - 1
                column = 0 if is_empty else container.column
            if not column:
                return depth, line
            line = line[column:]
        return len(self._containers), line

    def _goes_on_as_code(self, leaf: _Leaf, rest: str) -> bool:
        """Whether the line belongs to the open code, or ends its fence."""
        if leaf.fence and lines.closes_fence(rest, leaf.fence):
            self._close_leaf()
        elif leaf.fence:
            leaf.lines.append(rest[min(lines.indent(rest), leaf.fence_indent) :])
        elif not rest.strip(" "):
            leaf.n_blank += 1
        elif lines.indent(rest) >= lines.CODE_COLUMNS:
            leaf.lines += [""] * leaf.n_blank + [rest[lines.CODE_COLUMNS :]]
            leaf.n_blank = 0
        else:
            self._follows_blank = leaf.n_blank > 0
            return False
        return True

    def _turns(self, leaf: _Leaf, rest: str) -> bool:
        """Whether the line makes a table of the paragraph's last line, or a heading of all of them."""
        if lines.is_table_head(leaf.lines[-1], rest):
            row = leaf.lines.pop()
            if leaf.lines:
                self._close_leaf()
                leaf = self._open(BlockKind.TABLE, row)
            leaf.kind, leaf.lines = BlockKind.TABLE, [row, rest]
            return True
        if level := lines.underline_level(rest):
            leaf.kind, leaf.level = BlockKind.HEADING, level
        return bool(level)

    def _goes_on_as_text(self, leaf: _Leaf, rest: str, *, is_inside: bool) -> bool:
        """Whether a line that begins nothing belongs to the open leaf; a paragraph's may leave out the marks."""
        if leaf.kind is BlockKind.PLAIN:
            self._emit(leaf, rest)
        elif leaf.kind is BlockKind.PARAGRAPH or (
            leaf.kind is BlockKind.TABLE and is_inside and lines.indent(rest) < lines.CODE_COLUMNS
        ):
            leaf.lines.append(rest)
        else:
            return False
        return True

    # Blocks

    def _open_container(self, rest: str, depth: int, *, may_not_interrupt: bool) -> int:
        """Open a quote or list item; return the column at which its content begins, or 0."""
        if column := lines.quote(rest):
            container = Container("", column)
        else:
            found = None if lines.is_rule(rest) else lines.item(rest)
            if found is None or (may_not_interrupt and not lines.interrupts_paragraph(rest)):
                return 0
            container = Container(*found)
            column = container.column
        self._close_to(depth)
        self._containers.append(container)
        return column

    def _open_leaf(self, rest: str, depth: int) -> bool:
        """Open a leaf that its first line tells."""
        if lines.indent(rest) >= lines.CODE_COLUMNS:
            return False
        if found := lines.fence(rest):
            self._close_to(depth)
            leaf = self._open(BlockKind.CODE)
            leaf.fence_indent, leaf.fence, leaf.info = found
            leaf.is_opening = True
        elif title := lines.heading(rest):
            self._close_to(depth)
            self._open(BlockKind.HEADING, title[1]).level = title[0]
        elif lines.is_rule(rest):
            self._close_to(depth)
            self._open(BlockKind.RULE)
            self._close_leaf()
        else:
            return False
        return True

    def _open(self, kind: BlockKind, *first: str) -> _Leaf:
        n_begun, self._n_begun = len(self._containers) - self._n_begun, len(self._containers)
        self._leaf = _Leaf(kind, list(first), n_begun, self._follows_blank)
        self._follows_blank = False
        return self._leaf

    def _close_to(self, depth: int) -> None:
        """Close the leaf and all containers but `depth`; a container that held nothing is a block of its own."""
        self._close_leaf()
        if len(self._containers) > max(depth, self._n_begun):
            self._open(BlockKind.PARAGRAPH)
            self._close_leaf()
        del self._containers[depth:]
        self._n_begun = min(self._n_begun, depth)

    def _close_leaf(self) -> None:
        leaf, self._leaf = self._leaf, None
        if leaf is None or leaf.kind is BlockKind.PLAIN:
            return
        if leaf.kind is BlockKind.CODE:
            self._put_code(leaf)
            if not leaf.is_shown:
                self._emit(leaf, "")
        elif leaf.kind is not BlockKind.TABLE or not leaf.is_shown or len(leaf.lines) > HEAD_LINES:
            self._emit(leaf, "\n".join(leaf.lines))

    def _put_code(self, leaf: _Leaf) -> None:
        for line in leaf.lines:
            self._emit(leaf, line)
        leaf.lines = []

    def _emit(self, leaf: _Leaf, text: str) -> None:
        block = Block(
            leaf.kind, text, tuple(self._containers), 0 if leaf.is_shown else leaf.n_begun,
            leaf.follows_blank, not leaf.is_shown, leaf.level, leaf.info,
        )  # fmt: skip
        leaf.is_shown = True
        self._closed.append(block)
