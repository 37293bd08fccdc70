"""Speed-ups as horizontal bars, with the rival's speed as a line and each limit as a tick."""

from pathlib import Path
from typing import Any

from flashpoint.lab.bench.plot_style import COLORS, INK, MUTED, NAMES, RULE, STYLE, place_of
from flashpoint.lab.bench.result import OURS, Result
from flashpoint.lab.bench.speedups import Line, Speedup, arrange_lines

WIDTH, LINE_HEIGHT, HEAD_HEIGHT, FOOT_HEIGHT = 11.0, 0.42, 1.35, 0.95  # inches
LABEL_SHARE = 0.35
"""Of the width, for what the lines are."""
BAR = 0.36  # of the distance between lines
SHADES = {"forward": COLORS[OURS], "backward": "#F2A48E"}
AT_LEAST = 2.0
"""The axis reaches this far, however slow we are."""


def draw_speedups(result: Result, file: Path) -> None:
    """Write the figure; the suffix says in which format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lines = arrange_lines(result)
    height = LINE_HEIGHT * len(lines) + HEAD_HEIGHT + FOOT_HEIGHT
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(WIDTH, height), facecolor="white")
        axes = figure.add_axes(
            (
                LABEL_SHARE,
                FOOT_HEIGHT / height,
                0.97 - LABEL_SHARE,
                1 - (HEAD_HEIGHT + FOOT_HEIGHT) / height,
            )
        )
        _draw_axes(axes, lines)
        _draw_frame(figure, result, height)
        figure.savefig(file, dpi=200)


def _draw_axes(axes: Any, lines: list[Line]) -> None:
    """All bars, the line at 1, and the names of the lines."""
    pairs = [(line.forward, line.backward) for line in lines]
    values = [found.value for pair in pairs for found in pair if found]
    musts = [found.must for pair in pairs for found in pair if found and found.must]
    axes.set_xlim(0, 1.35 * max(AT_LEAST, *values, *musts))  # a label stands behind its bar
    axes.axvline(1, color=INK, linewidth=1.2, zorder=3)
    for position, line in enumerate(lines):
        both = line.forward is not None and line.backward is not None
        for mode, found, side in (("forward", line.forward, -1), ("backward", line.backward, 1)):
            if found is not None:
                _draw_bar(axes, position + (side * BAR / 2 if both else 0), found, SHADES[mode])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=10.5, color=INK)
    axes.tick_params(axis="y", length=0, pad=8)
    axes.tick_params(axis="x", length=0, labelcolor=MUTED)
    axes.set_xlabel("time of the best softmax attention over ours", fontsize=11)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_bar(axes: Any, y: float, found: Speedup, color: str) -> None:
    """A bar with its number and rival, and a tick where its limit is."""
    axes.barh(y, found.value, 0.92 * BAR, color=color, linewidth=0, zorder=2)
    if found.must is not None:
        axes.vlines(found.must, y - 0.46 * BAR, y + 0.46 * BAR, color=INK, linewidth=2.2, zorder=4)
    text = axes.annotate(
        f"{found.value:.2f}",
        (max(found.value, found.must or 0.0), y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        fontweight="normal" if found.is_kept else "bold",
        color=INK,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
    )
    axes.annotate(
        NAMES.get(found.rival, found.rival),
        (1, 0.5),
        xycoords=text,
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=MUTED,
        zorder=5,
    )


def _draw_frame(figure: Any, result: Result, height: float) -> None:
    """Title and legend above, where and with what it was measured below."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    left = 0.022
    title = f"Other options, head dims and dtypes on {result.environment.device}"
    figure.text(left, 1 - 0.2 / height, title, fontsize=19, fontweight="bold", va="top")
    claim = (
        "Times as fast as the best softmax attention with the same shape, mask and bias; bf16, "
        "relu and head dim 64 unless said."
    )
    figure.text(left, 1 - 0.62 / height, claim, fontsize=11, color=MUTED, va="top")
    tick = Line2D([], [], color=INK, linewidth=2.2, linestyle="none", marker="|", markersize=11)
    figure.legend(
        handles=[*(Patch(color=color) for color in SHADES.values()), tick],
        labels=[*SHADES, "promised; bold numbers miss it"],
        loc="upper left",
        bbox_to_anchor=(left, 1 - 0.92 / height),
        ncols=3,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.0,
        handleheight=1.0,
        fontsize=11,
    )
    figure.text(left, 0.16 / height, place_of(result), fontsize=9.5, color=MUTED, va="bottom")
