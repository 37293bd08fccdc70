"""What the verbs' views for the terminal are made of: tables, and what changes while one looks."""

from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table


def plain_table(*headings: str, left: int = 1, **options: Any) -> Table:
    """A table with one rule, below its head.

    Args:
        headings: of the columns.
        left: so many columns hold words; those behind them hold numbers, on the right.
        options: of the table, as rich takes them.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, **options)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < left else "right")
    return table


class LiveView:
    """Between enter and exit ``_live`` is on the screen, if the console is a terminal."""

    def __init__(self, console: Console, **options: Any) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, **options)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
