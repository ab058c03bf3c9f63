"""Tables and progress bars of the commands that do not chat."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns on stdout, the first bold where it is a terminal; a pipe gets the same text."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 10_000  # nobody's screen: nothing is wrapped or cut
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(Text(row[0], "bold"), *(Text(cell) for cell in row[1:]))
    console.print(table)


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
