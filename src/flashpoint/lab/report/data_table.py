"""A table of findings as markup: numbers that stand below each other, sorted by their values."""

from collections.abc import Sequence

from flashpoint.lab.report.findings import DataTable
from flashpoint.lab.report.html import Cell, Html, table
from flashpoint.lab.runs.formats import DASH, rounded


def data_table(data: DataTable, *, file: str) -> Html:
    """The table; ``file`` is what its download is called.

    Standard deviations ("top1 sd") stand behind their means; the download has columns of them.
    """
    columns = [_column([row[i] for row in data.rows]) for i in range(len(data.head))]
    deviations = [i for i, name in enumerate(data.head) if i and name == f"{data.head[i - 1]} sd"]
    for i in deviations:
        columns[i - 1] = [_with(*pair) for pair in zip(*columns[i - 1 : i + 1], strict=True)]
    rows = zip(*columns, strict=True) if columns else []
    return table(data.head, rows, label=data.title, file=file, hidden=deviations)


def _with(mean: Cell, deviation: Cell) -> Cell:
    """Both to the same place behind the point, unless that would make a deviation nothing."""
    if not isinstance(deviation.value, float):
        return mean
    number = str(mean.shown)
    shown = f"{deviation.value:.{len(number.partition('.')[2])}f}"
    if "e" in number or (deviation.value and not float(shown)):
        shown = f"{deviation.value:.1g}"
    return Cell(f"{number} \u00b1 {shown}", mean.value)


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
