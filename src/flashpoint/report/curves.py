"""Loss and accuracy over steps and over seconds."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from flashpoint.report.figure import SERIES, Figure, Line, embed, line_figure, tabs
from flashpoint.report.html import Html, tag
from flashpoint.report.page import Section
from flashpoint.report.run_files import Row, RunFiles, number

SMOOTHING = 40
"""So many points of a smooth curve are enough to see it; each is a mean of raw ones."""
AXES = {"step": "by step", "seconds": "by time"}


def curves(runs: Sequence[RunFiles]) -> Section:
    """Training loss, validation loss and accuracy of all runs, one panel for each axis."""
    panels = {label: _panel(runs, axis) for axis, label in AXES.items()}
    return Section(title="Curves", anchor="curves", body=tabs("horizontal axis", panels))


def _panel(runs: Sequence[RunFiles], axis: str) -> Html:
    figures = [
        _figure("Accuracy on validation data", runs, axis, "top1", is_training=False),
        _figure("Loss on validation data", runs, axis, "loss", is_training=False),
        _figure("Loss on training data", runs, axis, "loss", is_training=True),
    ]
    return tag("div", *(embed(figure) for figure in figures if figure.traces), class_="grid three")


def _figure(
    title: str, runs: Sequence[RunFiles], axis: str, quantity: str, *, is_training: bool
) -> Figure:
    lines: list[Line] = []
    for i, run in enumerate(runs):
        x, y = _points(run, axis, quantity, is_training=is_training)
        color = SERIES[i % len(SERIES)]
        if is_training and len(x) > 2 * SMOOTHING:
            lines.append(Line(name=run.name, x=x, y=y, color=color, is_faint=True))
            x, y = _smooth(x), _smooth(y)
        if x:
            lines.append(Line(name=run.name, x=x, y=y, color=color, has_marks=len(x) <= SMOOTHING))
    return line_figure(
        title,
        lines,
        x_title="seconds" if axis == "seconds" else "step",
        y_title="top-1" if quantity == "top1" else quantity,
        y_format=".0%" if quantity == "top1" else "",
    )


def _points(
    run: RunFiles, axis: str, quantity: str, *, is_training: bool
) -> tuple[list[float], list[float]]:
    """Places and values of all rows that have both."""
    points: list[tuple[float, float]] = []
    for row in run.train if is_training else run.validation:
        x = _seconds(row, run.train) if axis == "seconds" else number(row, "step")
        y = number(row, quantity)
        if x is not None and y is not None:
            points.append((x, y))
    return [x for x, _ in points], [y for _, y in points]


def _seconds(row: Row, train: Sequence[Row]) -> float | None:
    """When a row was made; between the training rows around it if it does not say so."""
    stated, step = number(row, "seconds"), number(row, "step")
    if stated is not None or step is None:
        return stated
    known = [
        (s, t)
        for r in train
        if (s := number(r, "step")) is not None and (t := number(r, "seconds"))
    ]
    place = bisect_left(known, (step, 0.0))
    if not known:
        return None
    before, after = known[max(place - 1, 0)], known[min(place, len(known) - 1)]
    if before[0] == after[0]:
        return after[1]
    share = (step - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])


def _smooth(values: Sequence[float]) -> list[float]:
    """Means of equal parts."""
    ends = [round(i * len(values) / SMOOTHING) for i in range(SMOOTHING + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
