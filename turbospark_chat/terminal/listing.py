"""Tables and progress bars of the commands that do not chat."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from turbospark_chat.terminal.harmless import harmless


class _TableConsole(Console):
    """A console whose reader may leave: that is no failure, which rich would end the program with."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_table(rows: Sequence[tuple[str, ...]], *, is_cut: bool = False) -> None:
    """Print rows in columns on stdout, the first bold where it is a terminal; a pipe gets the same text.

    With `is_cut` a terminal gets of each row what fits in one of its own.
    """
    console = _TableConsole(file=sys.stdout, highlight=False)
    cells = [[harmless(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*cells, fillvalue="")]
    for row in cells:
        padded = [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=False)]
        text = Text("  ".join(padded).rstrip(" "))
        text.stylize("bold", 0, len(row[0]))
        if is_cut and console.is_terminal:
            text.truncate(console.width, overflow="ellipsis")
        console.print(text, soft_wrap=True)


@contextmanager
def pull_progress(stream: TextIO) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each stage of a download while the block runs; nothing where `stream` is no terminal."""
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done)

        yield show
