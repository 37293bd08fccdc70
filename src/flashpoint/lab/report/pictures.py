"""Charts of findings as PNG and SVG for papers; matplotlib draws them, imported when it does.

The same chart gives the same bytes: no dates, no random names.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashpoint.errors import InputError, require
from flashpoint.lab.report.chart import (
    Point,
    assign_places,
    category_lines,
    has_band,
    has_interval,
    has_legend,
    legend_columns,
    legend_of,
    legend_rows,
    points_of,
    positions_of,
    tick_label,
    ticks_of,
)
from flashpoint.lab.runs.findings import Chart, Findings, Series

COLORS = (
    *("#D55E00", "#0072B2", "#009E73", "#AA4499"),
    *("#E69F00", "#56B4E9", "#222222", "#7F7F7F"),
)
"""By place, as the page's: color-blind readers tell them apart; marks help on gray paper."""
MARKS = ("o", "s", "D", "^", "v", "P", "p", "*")
INK, MUTED, RULE = "#1B1F24", "#4B5563", "#E5E7EB"
SIZE = (4.6, 3.1)  # inches: a column of a paper
LEGEND_LETTERS, LEGEND_HEIGHT = 62, 0.2  # height in inches
DPI = 200
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "text.color": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "svg.hashsalt": "flashpoint",
}


def write_pictures(findings: Findings, folder: Path) -> list[Path]:
    """Draw every chart as NAME.png and NAME.svg into a folder, which is made if need be.

    Returns:
        The files, in the order of the charts.
    """
    require("matplotlib", "a picture")
    _check_names(findings.charts)
    places = assign_places(findings.charts)
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in findings.charts:
            files += _write(chart, places, folder)
    except OSError as error:
        raise InputError(f"cannot write pictures into {folder}: {error.strerror}.") from error
    return files


def _check_names(charts: Sequence[Chart]) -> None:
    """Names become files: each its own, and none outside the folder."""
    names = [chart.name for chart in charts]
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise InputError(f"chart {name!r} must have letters, digits, '-', '_' or '.' only.")
        if names.count(name) > 1:
            raise InputError(f"{names.count(name)} charts are called {name!r}. Rename all but one")


def _write(chart: Chart, places: Mapping[str, int], folder: Path) -> list[Path]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        width, height = SIZE
        figure: Any = Figure(
            figsize=(width, height + LEGEND_HEIGHT * legend_rows(chart, LEGEND_LETTERS)),
            layout="constrained",
        )
        _draw(figure, chart, places)
        files = [folder / f"{chart.name}.png", folder / f"{chart.name}.svg"]
        figure.savefig(files[0], dpi=DPI, metadata={"Software": None})
        figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files


def _draw(figure: Any, chart: Chart, places: Mapping[str, int]) -> None:
    axes = figure.add_subplot()
    entries: list[tuple[Any, str]] = []
    named = legend_of(chart)
    for series in chart.series:
        if points := points_of(series, chart):
            where = positions_of(series, chart)
            line = _draw_series(axes, series, where, points, places[series.name])
            entries += [(line, series.name)] if series in named else []
    _draw_axes(axes, chart)
    if has_legend(chart):
        _draw_legend(figure, entries, legend_columns(chart, LEGEND_LETTERS))


def _draw_series(
    axes: Any, series: Series, where: Sequence[float], points: Sequence[Point], place: int
) -> Any:
    """Points and line with bars or a band; what the legend shows."""
    color, y = COLORS[place], [p.y for p in points]
    style: dict[str, Any] = {
        "color": color,
        "linewidth": 1.4,
        "linestyle": (0, (4, 2.5)) if series.is_dashed else "-" if series.has_line else "none",
        "marker": "none" if series.is_dashed and len(points) > 1 else MARKS[place],
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
    }
    (line,) = axes.plot(where, y, **style, zorder=2 if series.is_dashed else 3)
    low, high = [p.low for p in points], [p.high for p in points]
    if has_band(series, points):
        axes.fill_between(where, low, high, color=color, alpha=0.18, linewidth=0, zorder=2)
    elif has_interval(points):
        axes.vlines(where, low, high, color=color, linewidth=1.1, zorder=3)
    return line


def _draw_axes(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    texts = [axes.set_xlabel(chart.x_title), axes.set_ylabel(chart.y_title)]
    texts.append(axes.set_title(chart.title, loc="left", pad=8, wrap=True))
    if categories := category_lines(chart):
        axes.set_xticks(range(len(categories)), ["\n".join(lines) for lines in categories])
        axes.set_xlim(-0.6, len(categories) - 0.4)
        texts += axes.get_xticklabels()
    elif chart.x_is_log:
        axes.set_xscale("log")
        if ticks := ticks_of(chart):
            axes.set_xticks(ticks, [tick_label(x) for x in ticks])
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_minor_locator(NullLocator())
    if chart.y_is_log:
        axes.set_yscale("log")
    if chart.y_format == "percent":
        axes.yaxis.set_major_formatter(lambda share, _: f"{round(100 * share, 6):g}%")
    axes.grid(axis="y", color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, width=0.8, labelsize=8)
    for text in texts:
        text.set_parse_math(False)


def _draw_legend(figure: Any, entries: Sequence[tuple[Any, str]], columns: int) -> None:
    """Below the axes. Names are put in afterwards: "_relu" would be left out, "$" not shown."""
    legend = figure.legend(
        [handle for handle, _ in entries],
        ["-"] * len(entries),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=2.4,
        columnspacing=1.6,
    )
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
