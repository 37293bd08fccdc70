"""A chart of findings as a figure of the page, and what its pictures share with it.

A series keeps its color and its mark in all charts of a study, the activations in all studies:
softmax is blue everywhere.
"""

import functools
import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flashpoint.lab.report.figure import NUM_SERIES, SERIES, Figure, plain
from flashpoint.lab.runs.findings import Chart, Series
from flashpoint.lab.runs.formats import count

KNOWN = {
    **{"relu": 0, "softmax": 1, "gelu": 2, "relu2": 3, "softplus": 4, "relu6": 5, "sigmoid": 6},
    **{"silu": 5, "identity": 7},
}
"""Places of names that readers meet in many studies."""
FREE = (2, 3, 4, 5, 6, 7, 0, 1)
"""Places in the order in which other names get them: relu's and softmax's last."""
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up"),
    *("triangle-down", "cross", "pentagon", "star"),
)
MOST_BARS = 12
"""So many points of a line have bars; more have a band."""
MOST_TICKS = 12
MOST_DECADES = 9
MOST_LABELS = 6
"""So many stand side by side below a chart of a third of a page."""
LEGEND_COLUMNS, LEGEND_LETTERS = 4, 40
"""Of names side by side above such a chart."""
LEGEND_HEIGHT = 29
AXIS_LETTERS = 50
"""So many stand side by side below a chart of half a page."""
DODGE = 0.5
"""Share of a category's room over which its series are spread, where no lines join them."""


class Point(NamedTuple):
    """A point that can be drawn, with its interval; without one, the value three times."""

    x: float | str
    y: float
    low: float
    high: float


def assign_places(charts: Sequence[Chart]) -> dict[str, int]:
    """Which of the ``NUM_SERIES`` colors and marks each name has in all these charts.

    A dashed series whose name begins with that of another one has its color: theory beside
    what was measured. Where names are many, those that share a place are in different charts, as
    far as they can be.
    """
    series = [one for chart in charts for one in chart.series]
    measured = list(dict.fromkeys(one.name for one in series if not one.is_dashed))
    beside = {
        name: {one.name for chart in charts if name in _names(chart) for one in chart.series}
        for name in measured
    }
    places = add_places({}, measured, beside)
    for name in dict.fromkeys(one.name for one in series if one.is_dashed):
        kin = _kin(name, measured)
        places = {**places, name: places[kin]} if kin else add_places(places, [name])
    return places


def _names(chart: Chart) -> set[str]:
    return {one.name for one in chart.series}


def _kin(name: str, measured: Iterable[str]) -> str:
    """The measured series that a dashed one stands beside; empty where there is none."""
    kin = [other for other in measured if re.match(rf"{re.escape(other)}(?!\w)", name)]
    return max(kin, key=len, default="")


def add_places(
    places: Mapping[str, int],
    names: Iterable[str],
    beside: Mapping[str, Collection[str]] | None = None,
) -> dict[str, int]:
    """The places, and one for each name that has none; well-known names first.

    Args:
        places: by name.
        names: that need one.
        beside: the names that share a chart with a name. None: all do with all.
    """
    every = dict(places)
    for name in sorted(names, key=lambda name: name not in KNOWN):
        if name not in every:
            near = every if beside is None else beside[name]
            every[name] = KNOWN[name] if name in KNOWN else _free_place(name, every, near)
    return every


def _free_place(name: str, places: Mapping[str, int], near: Collection[str]) -> int:
    """That of its first word if it is free, else the next.

    Where there are many names, one that is free in the name's own charts, else any.
    """
    first = re.match(r"\w*", name)
    wanted = KNOWN.get(first.group() if first else "")
    order = FREE if wanted is None else (wanted, *FREE)
    for used in (set(places.values()), {places[other] for other in near if other in places}):
        for place in order:
            if place not in used:
                return place
    return len(places) % NUM_SERIES


def points_of(series: Series, chart: Chart) -> list[Point]:
    """What can be drawn: finite, and positive where an axis is logarithmic."""
    found: list[Point] = []
    has_names = bool(categories_of(chart))
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        place = str(x) if has_names else x
        if y is None or not (_fits(place, chart.x_is_log) and _fits(y, chart.y_is_log)):
            continue
        low, high = (_end(ends, i, y, chart) for ends in (series.low, series.high))
        found.append(Point(place, y, low, high))
    return found


def _end(ends: Sequence[float | None], i: int, y: float, chart: Chart) -> float:
    end = ends[i] if i < len(ends) else None
    if end is None or not _fits(end, chart.y_is_log):
        return y
    return min(max(end, 0.0), 1.0) if chart.y_format == "percent" else end


def _fits(value: float | str, is_log: bool) -> bool:
    """Whether an axis has a place for it."""
    return isinstance(value, str) or (math.isfinite(value) and (value > 0 or not is_log))


def categories_of(chart: Chart) -> list[str]:
    """Names along the horizontal axis in order; empty where it has numbers."""
    places = [x for one in chart.series for x in one.x]
    if not any(isinstance(x, str) for x in places):
        return []
    return list(dict.fromkeys(str(x) for x in places))


def category_lines(chart: Chart) -> list[list[str]]:
    """Each category's name in lines, so that names fit side by side unless a word does not."""
    categories = categories_of(chart)
    letters = max(AXIS_LETTERS // max(len(categories), 1), 8)
    names = (" ".join(_breakable(word, letters) for word in name.split()) for name in categories)
    wrap = functools.partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    return [wrap(name, letters) or [""] for name in names]


def _breakable(word: str, letters: int) -> str:
    """The word; one that is too long may break behind a slash, as relu4/ sum."""
    return word if len(word) <= letters else word.replace("/", "/ ")


def positions_of(series: Series, chart: Chart) -> list[float]:
    """Where on the horizontal axis the points are drawn; categories are 0, 1, 2 and so on."""
    categories = categories_of(chart)
    if not categories:
        return [point.x for point in points_of(series, chart) if not isinstance(point.x, str)]
    named = [str(x) for one in chart.series for x in one.x]
    is_spread = len(set(named)) < len(named) and not any(one.has_line for one in chart.series)
    order = [one is series for one in chart.series].index(True)
    offset = DODGE * ((order + 0.5) / len(chart.series) - 0.5) if is_spread else 0.0
    return [categories.index(str(point.x)) + offset for point in points_of(series, chart)]


def ticks_of(chart: Chart) -> list[float]:
    """Where a logarithmic axis is marked: at the points, where they are few, and not too close."""
    drawn = {point.x for series in chart.series for point in points_of(series, chart)}
    places = sorted(x for x in drawn if not isinstance(x, str))
    if not chart.x_is_log or not 1 < len(places) <= MOST_TICKS:
        return []
    apart = (places[-1] / places[0]) ** (1 / MOST_LABELS)
    kept = places[:1]
    for place in places[1:-1]:
        if min(place / kept[-1], places[-1] / place) >= apart:
            kept.append(place)
    return [*kept, places[-1]]


def has_legend(chart: Chart) -> bool:
    """Whether names of series say what the axis does not."""
    return len(chart.series) > 1 and any(list(one.x) != [one.name] for one in chart.series)


def legend_of(chart: Chart) -> list[Series]:
    """Those that the legend names: all but theory in the color of what was measured."""
    measured = [one.name for one in chart.series if not one.is_dashed]
    return [one for one in chart.series if not (one.is_dashed and _kin(one.name, measured))]


def legend_columns(chart: Chart, letters: int) -> int:
    """As many names of the legend as fit side by side in a line of so many letters."""
    named = legend_of(chart)
    longest = max(len(series.name) for series in named)
    return min(max(letters // (longest + 6), 1), LEGEND_COLUMNS, len(named))


def legend_rows(chart: Chart, letters: int) -> int:
    """How many lines of names there are."""
    if not has_legend(chart):
        return 0
    return math.ceil(len(legend_of(chart)) / legend_columns(chart, letters))


def tick_label(value: float) -> str:
    """A place on a logarithmic axis.

    Example:
        >>> tick_label(16384), tick_label(0.25), tick_label(92.4141), tick_label(3e9)
        ('16384', '0.25', '92.4', '3 G')
    """
    if value < 10 or (value % 1 == 0 and value < 1e5):
        return f"{value:g}"
    if value < 1e5:
        return f"{value:.{1 if value < 100 else 0}f}"
    number, _, letter = count(value).partition(" ")
    return f"{float(number):g} {letter}"


def has_band(series: Series, points: Sequence[Point]) -> bool:
    """Whether the interval is an area: where bars would stand too close."""
    return series.has_line and len(points) > MOST_BARS and has_interval(points)


def has_interval(points: Sequence[Point]) -> bool:
    """Whether any point has one."""
    return any(point.low < point.high for point in points)


def chart_figure(chart: Chart, places: Mapping[str, int]) -> Figure:
    """The chart for the page; ``places`` are those of ``assign_places``."""
    traces: list[dict[str, Any]] = []
    for series in chart.series:
        points = points_of(series, chart)
        if points:
            traces += _traces(series, points, chart, places[series.name])
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": plain(chart.x_title)}, **_x_axis(chart)},
        "yaxis": {"title": {"text": plain(chart.y_title)}, **_y_axis(chart)},
        "hovermode": "closest" if categories_of(chart) else "x unified",
        "showlegend": has_legend(chart),
    }
    height = 300 + LEGEND_HEIGHT * legend_rows(chart, LEGEND_LETTERS)
    height += 15 * (max(map(len, category_lines(chart)), default=1) - 1)
    return Figure(
        title=chart.title, traces=traces, layout=layout, height=height, caption=chart.caption
    )


def _x_axis(chart: Chart) -> dict[str, Any]:
    if categories := categories_of(chart):
        return {
            "tickvals": list(range(len(categories))),
            "ticktext": ["<br>".join(map(plain, lines)) for lines in category_lines(chart)],
            "autotickangles": [0, -30, -90],  # to the left: at the right edge names are left out
            "range": [-0.5, len(categories) - 0.5],
            "showgrid": False,
        }
    if not chart.x_is_log:
        return {}
    ticks = ticks_of(chart)
    marked = {"tickvals": ticks, "ticktext": [tick_label(x) for x in ticks]} if ticks else {}
    return {"type": "log", **marked}


def _y_axis(chart: Chart) -> dict[str, Any]:
    form = {"tickformat": "~%"} if chart.y_format == "percent" else {}
    if not chart.y_is_log:
        return form
    powers = [math.log10(p.y) for series in chart.series for p in points_of(series, chart)]
    first, last = math.floor(min(powers, default=0)), math.ceil(max(powers, default=0))
    if last - first < 3:
        return {"type": "log", **form}
    marked = range(first, last + 1, math.ceil((last - first) / MOST_DECADES))
    names = form or {"ticktext": [f"10<sup>{n}</sup>" for n in marked]}
    return {"type": "log", "tickvals": [10.0**n for n in marked], **names}


def _traces(
    series: Series, points: Sequence[Point], chart: Chart, place: int
) -> list[dict[str, Any]]:
    """The points, and the band around them if there is one."""
    color = SERIES[place]
    mode = "lines" if series.is_dashed else "lines+markers" if series.has_line else "markers"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers" if len(points) == 1 else mode,
        "name": plain(series.name),
        "legendgroup": plain(series.name),
        "showlegend": series in legend_of(chart),
        "x": positions_of(series, chart),
        "y": [p.y for p in points],
        "line": {"color": color, "width": 2, "dash": "dash" if series.is_dashed else "solid"},
        "marker": {"color": color, "size": 8, "symbol": SYMBOLS[place]},
        "text": [_describe(point, series, chart) for point in points],
        "hovertemplate": "%{text}<extra></extra>" if categories_of(chart) else "%{text}",
        "zorder": 0 if series.is_dashed else 1,
    }
    if has_band(series, points):
        return [_band(trace, points), trace]
    if has_interval(points):
        trace["error_y"] = {
            **{"type": "data", "symmetric": False, "color": color, "thickness": 1.5, "width": 3},
            "array": [p.high - p.y for p in points],
            "arrayminus": [p.y - p.low for p in points],
        }
    return [trace]


def _band(trace: Mapping[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    """Along the upper ends and back along the lower ones."""
    return {
        **{"type": "scatter", "mode": "lines", "fill": "toself", "line": {"width": 0}},
        "x": [*trace["x"], *reversed(trace["x"])],
        "y": [*(p.high for p in points), *(p.low for p in reversed(points))],
        **{"fillcolor": trace["line"]["color"], "legendgroup": trace["legendgroup"]},
        **{"opacity": 0.18, "hoverinfo": "skip", "showlegend": False},
    }


def _describe(point: Point, series: Series, chart: Chart) -> str:
    """A value with its interval, where the pointer is; plotly adds the name to those of numbers.

    Of categories, the name and the category, or one of them where they are the same.
    """
    form = ".2%" if chart.y_format == "percent" else ".4g"
    names = dict.fromkeys([series.name, point.x]) if isinstance(point.x, str) else {}
    place = ", ".join(plain(str(name)) for name in names)
    value = f"{place}: {point.y:{form}}" if place else f"{point.y:{form}}"
    if point.low == point.high:
        return value
    return f"{value} ({point.low:{form}} to {point.high:{form}})"
