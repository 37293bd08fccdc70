"""Figures as data: plotly draws them in the browser, in the colors of the page's theme.

A figure is traces and axes without colors for paper, ink and grid: the page's script takes those
from the style sheet, so that light, dark and print each look right. Colors of series are names
of the style sheet's variables (``SERIES``). Names and titles go through ``plain``, since plotly
takes some markup in them for its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from flashpoint.lab.report.html import Html, tag

NUM_SERIES = 8
SERIES = tuple(f"--series-{i}" for i in range(NUM_SERIES))


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve.

    Attributes:
        name: what it is called where the pointer is.
        color: a variable of the style sheet, one of ``SERIES``.
        group: what the legend calls it; lines of one group share an entry. Empty: the name.
        width: of the line, in pixels.
        is_faint: drawn pale and left out of the legend, as raw values behind smooth ones are.
        has_marks: points are marked.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str
    group: str = ""
    width: float = 2.5
    is_faint: bool = False
    has_marks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """What plotly needs: traces, a layout; and what the figure is called and shows."""

    title: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    height: int = 340
    caption: str = ""


def plain(text: str) -> str:
    """Text that plotly shows as it stands.

    Example:
        >>> plain("<b>relu</b> & co")
        '&lt;b&gt;relu&lt;/b&gt; &amp; co'
    """
    return escape(text, quote=False)


def line_figure(
    title: str,
    lines: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    y_format: str = "",
) -> Figure:
    """Curves over one axis; ``y_format`` is d3's, as ``.1%``."""
    is_unified = len(lines) <= 2 * NUM_SERIES
    layout = {
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {"title": {"text": y_title}, "tickformat": y_format},
        "hovermode": "x unified" if is_unified else "closest",
    }
    place = "" if is_unified else f"{x_title} %{{x}}: "  # above all lines, or of this one
    value = f"{place}%{{y:{'.2%' if y_format else '.4g'}}}"
    traces: list[dict[str, Any]] = []
    named: set[str] = set()
    for line in lines:
        group = line.group or line.name
        is_named = not line.is_faint and group not in named
        named |= {group} if is_named else set()
        traces.append(_line_trace(line, group, value, is_named=is_named))
    return Figure(title=title, traces=traces, layout=layout)


def _line_trace(line: Line, group: str, value: str, *, is_named: bool) -> dict[str, Any]:
    """The curve; where the pointer is, its name once and the ``value``, as plotly's template."""
    hover = {"hoverinfo": "skip"} if line.is_faint else {"hovertemplate": value}
    if line.group and not line.is_faint:
        hover = {"hovertemplate": f"%{{text}}, {value}<extra></extra>"}
    return {
        "type": "scatter",
        "mode": "lines+markers" if line.has_marks else "lines",
        "name": plain(group),
        "x": list(line.x),
        "y": list(line.y),
        "line": {"color": line.color, "width": line.width},
        "marker": {"color": line.color, "size": 6},
        "opacity": 0.35 if line.is_faint else 0.7 if line.group else 1,
        "legendgroup": group,
        "showlegend": is_named,
        "text": plain(line.name),
        **hover,
    }


def heat_figure(
    title: str,
    values: Sequence[Sequence[float | None]],
    *,
    x_title: str,
    y_title: str,
    form: str,
    limits: tuple[float, float],
) -> Figure:
    """A matrix of numbers as colored cells with the numbers in them; None stays blank."""
    trace = {
        "type": "heatmap",
        "z": [list(row) for row in values],
        "zmin": limits[0],
        "zmax": limits[1],
        "texttemplate": f"%{{z:{form}}}",
        "hovertemplate": f"{y_title} %{{y}}, {x_title} %{{x}}: %{{z:{form}}}<extra></extra>",
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "colorscale": "heat",  # the page's script puts the theme's scale here
    }
    layout = {
        "xaxis": {"title": {"text": x_title}, "dtick": 1, "showgrid": False},
        "yaxis": {
            "title": {"text": y_title},
            "dtick": 1,
            "showgrid": False,
            "autorange": "reversed",
        },
    }
    height = 110 + 34 * max(len(values), 2)
    return Figure(title=title, traces=[trace], layout=layout, height=height)


def embed(figure: Figure) -> Html:
    """The figure's place in the page and its data beside it."""
    data = json.dumps({"data": figure.traces, "layout": figure.layout}, allow_nan=False)
    script = Html(data.replace("<", "\\u003c"))  # nothing in it can end the script
    return tag(
        "figure",
        tag("figcaption", figure.title),
        tag(
            "div",
            class_="plot",
            style=f"height:{figure.height}px",
            role="img",
            aria_label=figure.title,
        ),
        tag("script", script, type="application/json"),
        *([tag("p", figure.caption, class_="caption")] if figure.caption else []),
        class_="chart",
    )


def tabs(name: str, panels: Mapping[str, Html]) -> Html:
    """Panels of which one is shown; the first at the start, the others by a click."""
    buttons = [
        tag("button", label, type="button", role="tab", aria_selected="false" if i else "true")
        for i, label in enumerate(panels)
    ]
    bodies = [
        tag("div", body, class_="panel", role="tabpanel", hidden=i > 0)
        for i, body in enumerate(panels.values())
    ]
    bar = tag("div", *buttons, class_="tabbar", role="tablist", aria_label=name)
    return tag("div", bar, *bodies, class_="tabs")
