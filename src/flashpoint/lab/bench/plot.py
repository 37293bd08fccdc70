"""A result as a figure for a talk: rates as bars, our speed-up above ours.

matplotlib is an extra and is imported when something is drawn.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.bench.panels import Group, Panel, arrange
from flashpoint.lab.bench.plot_style import COLORS, MUTED, NAMES, RULE, STYLE, place_of
from flashpoint.lab.bench.result import OURS, Result
from flashpoint.lab.bench.speedup_plot import draw_speedups

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH, LINE_HEIGHT, HEAD_HEIGHT, FOOT_HEIGHT = (
    13.33,
    2.75,
    1.3,
    0.7,
)  # inches; a slide: 13.33 x 7.5
LEGEND_COLUMNS, LEGEND_HEIGHT = 5, 0.28
GROUP_WIDTH, MAX_BAR_WIDTH = 0.82, 0.22  # of the distance between groups
MIN_GROUPS = 4
"""Fewer ones leave room at the sides."""


def require_drawable(file: Path) -> None:
    """Refuse a figure that could not be drawn, before anything is measured."""
    if file.suffix not in SUFFIXES:
        raise InputError(
            f"--plot {file} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
            f"not {file.suffix or 'nothing'!r}."
        )
    if find_spec("matplotlib") is None:
        raise UnsupportedError(
            "--plot needs matplotlib, which is not installed. Run `pip install matplotlib`, "
            "or leave out --plot."
        )


def draw(result: Result, file: Path) -> None:
    """Write the figure; the suffix says in which format.

    The suite ``corners`` has cases of all kinds, whose rates cannot stand side by side: it is
    drawn by its speed-ups.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if result.suite == "corners":
        draw_speedups(result, file)
        return
    lines = arrange(result)
    if not lines:
        raise InputError("--plot has nothing to draw: no case has a rate.")
    drawn = {
        bar.provider
        for panels in lines
        for panel in panels
        for group in panel.groups
        for bar in group.bars
    }
    head = HEAD_HEIGHT + LEGEND_HEIGHT * ((len(drawn) - 1) // LEGEND_COLUMNS)
    height = LINE_HEIGHT * len(lines) + head + FOOT_HEIGHT
    top, bottom = 1 - (head + 0.4) / height, (FOOT_HEIGHT + 0.3) / height
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(WIDTH, height), facecolor="white")
        slots = figure.add_gridspec(
            len(lines), 12, left=0.07, right=0.98, top=top, bottom=bottom, hspace=0.55, wspace=1.2
        )
        for index, panels in enumerate(lines):
            width = 12 // len(panels)
            for column, panel in enumerate(panels):
                where = slots[index, column * width : (column + 1) * width]
                axes = figure.add_subplot(where)
                _draw_panel(axes, panel)
                axes.set_ylabel("" if column else panel.unit, labelpad=8)
        _draw_frame(figure, result, drawn, height)
        figure.savefig(file, dpi=200)


def _draw_panel(axes: Any, panel: Panel) -> None:
    """Grouped bars over the cases, and the matrix rate as a line."""
    axes.set_title(panel.title, loc="left", fontsize=14, fontweight="bold", pad=12)
    most_bars = max(len(group.bars) for group in panel.groups)
    for position, group in enumerate(panel.groups):
        _draw_group(axes, position, group, min(MAX_BAR_WIDTH, GROUP_WIDTH / most_bars))
    highest = max(bar.rate for group in panel.groups for bar in group.bars)
    if panel.most:
        axes.axhline(panel.most, color=MUTED, linewidth=1.2, linestyle=(0, (5, 4)), zorder=1)
        text = f"- -  one matrix product: {panel.most:.0f}"
        axes.set_title(text, loc="right", fontsize=11, color=MUTED, pad=12)
    axes.set_ylim(0, max(1.16 * highest, 1.1 * (panel.most or 0)))
    beside = max(0.0, (MIN_GROUPS - len(panel.groups)) / 2)
    axes.set_xlim(-0.6 - beside, len(panel.groups) - 0.4 + beside)
    axes.set_xticks(range(len(panel.groups)), [group.label for group in panel.groups])
    axes.tick_params(length=0, pad=6)
    axes.locator_params(axis="y", nbins=5)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_group(axes: Any, position: int, group: Group, width: float) -> None:
    """The bars of one case side by side, ours with the speed-up above."""
    left = position - width * (len(group.bars) - 1) / 2
    for index, bar in enumerate(group.bars):
        x = left + index * width
        color = COLORS.get(bar.provider, MUTED)
        axes.bar(x, bar.rate, 0.92 * width, color=color, linewidth=0, zorder=2)
        if bar.provider == OURS and group.speedup is not None:
            beside = [other.rate for other in group.bars[: index + 2]]  # the label is that wide
            axes.annotate(
                f"{group.speedup:.2f}x",
                (x, max(beside)),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=12,
                fontweight="bold",
                color=color,
                zorder=3,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
            )


def _draw_frame(figure: Any, result: Result, drawn: set[str], height: float) -> None:
    """Title and legend above, where and with what it was measured below."""
    from matplotlib.patches import Patch

    place, left = result.environment, 0.022
    title = f"Attention without softmax on {place.device}"
    figure.text(left, 1 - 0.22 / height, title, fontsize=22, fontweight="bold", va="top")
    claim = (
        "Rate by sequence length, higher is better. "
        "Above our bars: speed-up over the best softmax attention (SDPA)."
    )
    figure.text(left, 1 - 0.66 / height, claim, fontsize=13, color=MUTED, va="top")
    figure.legend(
        handles=[Patch(color=COLORS[name], label=NAMES[name]) for name in NAMES if name in drawn],
        loc="upper left",
        bbox_to_anchor=(left, 1 - 1.0 / height),
        ncols=LEGEND_COLUMNS,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.6,
    )
    figure.text(left, 0.16 / height, place_of(result), fontsize=10.5, color=MUTED, va="bottom")
