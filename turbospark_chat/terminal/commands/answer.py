"""How commands answer: a line, or rows of cells."""

from collections.abc import Collection, Iterable, Sequence

from rich.text import Text

from turbospark_chat.terminal.commands.context import CommandContext
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.rows import grid


def say(context: CommandContext, text: str) -> None:
    """Answer with a text."""
    context.show(Text(harmless(text), "notice"))


def show_rows(context: CommandContext, rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> None:
    """Answer with a table; columns numbered in `right` are set to the right."""
    context.show(grid(rows, right=right))
