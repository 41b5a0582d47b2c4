"""What the commands of this folder share: tables on the screen, and progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table


def new_table(texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Give an empty table: columns of texts, then of numbers, right-aligned."""
    table = Table()
    for column in texts:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def show(screen: Console, tables: Iterable[tuple[str, Table]]) -> None:
    """Print the tables that have rows under their titles."""
    for title, table in tables:
        if table.row_count:
            table.title = title
            screen.print(table, soft_wrap=True)


@contextmanager
def threads_kept() -> Iterator[None]:
    """Whatever number of threads is set within, torch has the former one afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_threads(
    screen: Console, threads: Sequence[int], names: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """Each name with each number of threads, which torch has meanwhile."""
    with threads_kept(), Progress(console=screen) as progress:
        task = progress.add_task("", total=len(threads) * len(names))
        for n in threads:
            torch.set_num_threads(n)
            for name in names:
                progress.update(task, description=f"{n} thread(s): {name}")
                yield n, name
                progress.advance(task)
