"""Loss and accuracy over steps and over seconds."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from flashpoint.lab.report.chart import add_places
from flashpoint.lab.report.figure import SERIES, Figure, Line, embed, line_figure, tabs
from flashpoint.lab.report.html import Html, join, tag
from flashpoint.lab.report.metrics import METRICS, metrics_of
from flashpoint.lab.runs.findings import Factor
from flashpoint.lab.runs.run_files import Row, RunFiles, number

_T = TypeVar("_T")

SMOOTHING = 40
"""So many points of a smooth curve are enough to see it; each is a mean of raw ones."""
MOST_RUNS = 48
"""So many runs are drawn where there are more."""
AXES = {"step": "by step", "seconds": "by time"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """A run and how its curves look; with a ``group``, coarse among many."""

    run: RunFiles
    color: str
    group: str = ""
    width: float = 2.5


def curves(runs: Sequence[RunFiles]) -> Html:
    """Training loss, validation loss and accuracy of each run, one panel for each axis."""
    return _panels([_Drawn(run=run, color=SERIES[i % len(SERIES)]) for i, run in enumerate(runs)])


def curves_by_factors(
    runs: Sequence[RunFiles], factors: Sequence[Mapping[str, Factor]], places: Mapping[str, int]
) -> Html:
    """The same of many runs as thin lines, colored by what a study varies.

    Args:
        runs: of which ``MOST_RUNS`` are drawn, evenly spread.
        factors: of each run.
        places: of names that have their color elsewhere, as ``assign_places`` gives them.
    """
    names = _told_apart(factors)
    shown = spread(list(zip(runs, factors, strict=True)), MOST_RUNS)
    groups = [_label(stands, names) for _, stands in shown]
    places = add_places(places, dict.fromkeys(groups), dict.fromkeys(groups, groups))
    width = 1 if len(shown) > len(SERIES) else 2
    drawn = [
        _Drawn(run=run, color=SERIES[places[group]], group=group, width=width)
        for (run, _), group in zip(shown, groups, strict=True)
    ]
    left_out = (
        f"{len(shown)} of {len(runs)} runs, evenly chosen. " if len(shown) < len(runs) else ""
    )
    by = " and ".join(name.replace("_", " ") for name in names)
    colored = f"Colored by {by}; a" if by else "A"
    note = f"{left_out}{colored} line names its run where the pointer is."
    return join([tag("p", note, class_="note"), _panels(drawn)])


def _told_apart(factors: Sequence[Mapping[str, Factor]]) -> list[str]:
    """Factors that a color stands for: those that vary but the seed, while colors suffice."""
    every = dict.fromkeys(name for stands in factors for name in stands if name != "seed")
    varied = [name for name in every if len({stands.get(name) for stands in factors}) > 1]
    for end in range(len(varied), 1, -1):
        if len({_label(stands, varied[:end]) for stands in factors}) <= len(SERIES):
            return varied[:end]
    return varied[:1]


def _label(stands: Mapping[str, Factor], names: Sequence[str]) -> str:
    """Words as they are, numbers behind what they count, as "relu, length 512"."""
    values = [(name, stands[name]) for name in names if name in stands]
    words = [v if isinstance(v, str) else f"{name.replace('_', ' ')} {v:g}" for name, v in values]
    return ", ".join(words) or "all"


def spread(items: Sequence[_T], most: int) -> list[_T]:
    """At most so many, evenly chosen, the first and the last among them.

    Example:
        >>> spread(range(10), 4), spread("abc", 4)
        ([0, 3, 6, 9], ['a', 'b', 'c'])
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _panels(drawn: Sequence[_Drawn]) -> Html:
    return tabs("horizontal axis", {label: _panel(drawn, axis) for axis, label in AXES.items()})


def _panel(drawn: Sequence[_Drawn], axis: str) -> Html:
    figures = [
        *(
            _figure("Accuracy on validation data", drawn, axis, metric.name)
            for metric in metrics_of([one.run for one in drawn])[:1]
            if metric.is_share
        ),
        _figure("Loss on validation data", drawn, axis, "loss"),
        _figure("Loss on training data", drawn, axis, "loss", is_training=True),
    ]
    return tag("div", *(embed(figure) for figure in figures if figure.traces), class_="grid three")


def _figure(
    title: str, drawn: Sequence[_Drawn], axis: str, quantity: str, *, is_training: bool = False
) -> Figure:
    is_share = any(metric.is_share for metric in METRICS if metric.name == quantity)
    lines: list[Line] = []
    for one in drawn:
        x, y = _points(one.run, axis, quantity, is_training=is_training)
        name, color, group = one.run.name, one.color, one.group
        if len(x) > 2 * SMOOTHING and (is_training or group):
            if not group:
                lines.append(Line(name=name, x=x, y=y, color=color, width=1, is_faint=True))
            x, y = _smooth(x), _smooth(y)
        if group and len(x) > 1:  # one point is no line
            x, y = _coarse(x), _coarse(y)
            lines.append(Line(name=name, x=x, y=y, color=color, group=group, width=one.width))
        elif x and not group:
            lines.append(Line(name=name, x=x, y=y, color=color, has_marks=len(x) <= SMOOTHING))
    return line_figure(
        title,
        [line for line in lines if line.x],
        x_title="seconds" if axis == "seconds" else "step",
        y_title=next(metric.label for metric in METRICS if metric.name == quantity),
        y_format=".0%" if is_share else "",
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


def _coarse(values: Sequence[float]) -> list[float]:
    """Four digits: all that a thin line shows, and a fraction of the page."""
    return [float(f"{value:.4g}") for value in values]
