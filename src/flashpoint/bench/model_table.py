"""Rows of whole models as a table for the terminal, 80 columns wide or more."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from flashpoint.bench.formats import format_bytes, format_or_dash, format_seconds, three_digits
from flashpoint.bench.model_cases import OURS, TWINS
from flashpoint.bench.result import ModelRow

LEGEND = (
    "A training step of the whole model, norms of q and k in both twins: median time, images a "
    "second below it. Speed-up: softmax's time over relu's, with its limit below, or the aim "
    "where that is reached. Memory: the peak of a step over weights and images, softmax's below."
)


def model_table(rows: Sequence[ModelRow]) -> Table:
    """Both twins beside each other."""
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="bold"
    )
    table.add_column("model, batch", no_wrap=True)
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


def broken_promise(row: ModelRow) -> str | None:
    """What the row promises and does not keep, with the two numbers."""
    ours = row.of(OURS)
    if ours.skipped:
        return f"there is no result: {ours.skipped}"
    if row.limit is None or (row.speedup is not None and row.speedup >= row.limit.must):
        return None
    rivals = ", ".join(row.limit.rivals)
    if row.speedup is None:
        return f"nothing to compare with: no result of {rivals}"
    return f"{row.speedup:.2f}x as fast as {rivals}, limit {row.limit.must:.2f}x"


def _time_cell(row: ModelRow, attention: str) -> Text:
    timing, rate = row.of(attention).timing, row.images_per_s(attention)
    if timing is None or rate is None:
        return Text("-")
    return _cell(format_seconds(timing.median_s), f"{three_digits(rate)} images/s")


def _speed_cell(row: ModelRow) -> Text:
    text = format_or_dash(row.speedup, ".2f") + ("" if row.speedup is None else "x")
    if row.limit is None or row.speedup is None:
        return _cell(text)
    style = "bold red" if broken_promise(row) else "green"
    return _cell(text, row.limit.bar(row.speedup), style)


def _memory_cell(row: ModelRow) -> Text:
    """relu's peak, softmax's below."""
    peaks = [row.of(attention).peak for attention in TWINS]
    sizes = [None if peak is None else peak.extra_bytes for peak in peaks]
    return _cell(*("-" if size is None else format_bytes(size) for size in sizes))


def _cell(first: str, second: str = "", style: str = "") -> Text:
    """Two lines, the second one dim."""
    return Text.assemble((first, style), "\n", (second, "dim"))
