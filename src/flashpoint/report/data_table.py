"""A table of findings as markup: numbers that stand below each other, sorted by their values."""

from collections.abc import Sequence

from flashpoint.report.findings import DataTable
from flashpoint.report.format import DASH, rounded
from flashpoint.report.html import Cell, Html, table


def data_table(data: DataTable, *, file: str) -> Html:
    """The table; ``file`` is what its download is called."""
    columns = [_column([row[i] for row in data.rows]) for i in range(len(data.head))]
    rows = zip(*columns, strict=True) if columns else []
    return table(data.head, rows, label=data.title, file=file)


def _column(values: Sequence[str | float | None]) -> list[Cell]:
    """Cells of one column; its numbers share their places behind the point."""
    numbers = [value for value in values if isinstance(value, int | float)]
    shown = iter(rounded(numbers))
    cells: list[Cell] = []
    for value in values:
        if value is None:
            cells.append(Cell(DASH, None))
        elif isinstance(value, str):
            cells.append(Cell(value, value))
        else:
            cells.append(Cell(next(shown), value))
    return cells
