"""Rows of whole models as a table for the terminal, 80 columns wide or more."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from flashpoint.lab.bench.cells import cell, empty_table
from flashpoint.lab.bench.check import slow_model
from flashpoint.lab.bench.formats import format_bytes, format_or_dash, format_seconds, three_digits
from flashpoint.lab.bench.model_cases import TWINS
from flashpoint.lab.bench.result import ModelRow

LEGEND = (
    "A training step of the whole model, norms of q and k in both twins: median time, images a "
    "second below it. Speed-up: softmax's time over relu's, with its limit below, or the aim "
    "where that is reached. Memory: the peak of a step over weights and images, softmax's below."
)


def model_table(rows: Sequence[ModelRow]) -> Table:
    """Both twins beside each other."""
    table = empty_table("model, batch")
    for heading in (*TWINS, "speed-up", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        times = (_time_cell(row, name) for name in TWINS)
        table.add_row(Text(str(row.case)), *times, _speed_cell(row), _memory_cell(row))
    return table


def skipped_models(rows: Sequence[ModelRow]) -> Iterator[str]:
    """Why a twin has no number."""
    for row in rows:
        for found in row.measurements:
            if found.skipped:
                yield f"No {found.attention}: {found.skipped} ({row.case})."


def _time_cell(row: ModelRow, attention: str) -> Text:
    timing, rate = row.of(attention).timing, row.images_per_s(attention)
    if timing is None or rate is None:
        return Text("-")
    return cell(format_seconds(timing.median_s), f"{three_digits(rate)} images/s")


def _speed_cell(row: ModelRow) -> Text:
    text = format_or_dash(row.speedup, ".2f") + ("" if row.speedup is None else "x")
    if row.limit is None or row.speedup is None:
        return cell(text)
    style = "bold red" if slow_model(row) else "green"
    return cell(text, row.limit.bar(row.speedup), style)


def _memory_cell(row: ModelRow) -> Text:
    """relu's peak, softmax's below."""
    peaks = [row.of(attention).peak for attention in TWINS]
    sizes = [None if peak is None else peak.extra_bytes for peak in peaks]
    return cell(*("-" if size is None else format_bytes(size) for size in sizes))
