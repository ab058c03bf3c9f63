"""Rows of cells as people read them: columns aligned, the widest ones wrapped where the screen is narrow."""

from collections.abc import Collection, Iterable, Sequence

from rich.cells import set_cell_size
from rich.table import Table
from rich.text import Text

from turbospark_chat.terminal.harmless import harmless


def grid(rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> Table:
    """Return rows as a table without lines, the first column bold; columns numbered in `right` are set to the right."""
    rows = list(rows)
    n_columns = max((len(row) for row in rows), default=0)
    table = Table.grid(padding=(0, 2))
    for number in range(n_columns):
        table.add_column(
            style="bar.model" if number == 0 else "",
            justify="right" if number in right else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    return table


def one_row(text: str, width: int) -> str:
    """Return as much of a text as one row has room for."""
    line = " ".join(harmless(text).split())
    return set_cell_size(line, max(width - 1, 1)).rstrip()
