"""What the tables for the terminal are made of."""

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text


def empty_table(heading: str) -> Table:
    """With the column of the cases only."""
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="bold"
    )
    table.add_column(heading, no_wrap=True)
    return table


def cell(first: str, second: str = "", style: str = "") -> Text:
    """Two lines, the second one dim."""
    return Text.assemble((first, style), "\n", (second, "dim"))
