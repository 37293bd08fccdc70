"""A survey as a figure: what a step spends its time on, and how much memory it takes.

matplotlib is an extra and is imported when something is drawn.
"""

from itertools import groupby
from pathlib import Path
from typing import Any

from flashpoint.lab.bench.plot import WIDTH
from flashpoint.lab.bench.plot_style import INK, MUTED, RULE, STYLE
from flashpoint.lab.runs.formats import counted
from flashpoint.lab.scaling.estimate import Estimate
from flashpoint.lab.scaling.survey import Survey
from flashpoint.lab.scaling.traffic import ALONE
from flashpoint.lab.training.memory_check import ADVISED_SHARE

HEIGHT = 7.5  # inches; with the width, a slide
GAP = 1.2  # between groups, in bars
SPEND = {"attention": "#E4502A", "products": "#F2A65A", "other": "#B9C1CD", "waiting": "#4A5568"}
LABELS = {
    "attention": "attention",
    "products": "other matrix products",
    "other": "norms, GELU, optimizer, copies",
    "waiting": "waiting for messages",
}
HELD = {"weights": "#8A94A6", "activations": "#E8B7A7", "travelers": "#7FA894"}
HELD_LABELS = {
    "weights": "parameters, gradients, moments",
    "activations": "activations and inputs",
    "travelers": "tensors of other ranks, in one layer",
}
PALE = 0.35
"""Of what does not fit."""


def draw(found: Survey, file: Path) -> None:
    """Write the figure; the suffix says in which format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "font.size": 11}):
        figure: Any = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
        slots = figure.add_gridspec(
            2, 1, left=0.07, right=0.985, top=0.79, bottom=0.18, hspace=0.42, height_ratios=(3, 2)
        )
        above = figure.add_subplot(slots[0])
        below = figure.add_subplot(slots[1], sharex=above)
        places = _places(found)
        _draw_times(above, found, places)
        _draw_memory(below, found, places)
        _name_bars(below, found, places)
        above.tick_params(labelbottom=False)
        _draw_frame(figure, found)
        figure.savefig(file, dpi=200)


def _places(found: Survey) -> list[float]:
    """Where bars stand: groups by split, with gaps between."""
    places: list[float] = []
    at = 0.0
    for _, group in groupby(found.estimates, key=lambda one: one.choice.sequence):
        for _ in group:
            places.append(at)
            at += 1.0
        at += GAP
    return places


def _spent(one: Estimate) -> dict[str, float]:
    seconds = one.seconds
    other = seconds.elementwise + seconds.copies
    parts = (seconds.attention, seconds.products, other, seconds.waiting)
    return dict(zip(SPEND, parts, strict=True))


def _held(one: Estimate) -> dict[str, float]:
    memory = one.memory
    weights = memory.parameters + memory.gradients + memory.moments
    parts = (weights, memory.activations + memory.inputs, memory.travelers)
    return {name: part / 1e9 for name, part in zip(HELD, parts, strict=True)}


def _draw_times(axes: Any, found: Survey, places: list[float]) -> None:
    """Stacked seconds; the best one gets its number."""
    _stack(axes, found, places, [_spent(one) for one in found.estimates], SPEND)
    best, highest = found.best, max(one.seconds.step for one in found.estimates)
    if best is not None:
        split = best.choice.sequence
        beside = [one.seconds.step for one in found.estimates if one.choice.sequence == split]
        axes.annotate(
            f"best: {best.seconds.step:.3g} s",
            (places[found.estimates.index(best)], best.seconds.step),
            xytext=(places[found.estimates.index(best)], max(beside) + 0.06 * highest),
            ha="center",
            fontweight="bold",
            color=SPEND["attention"],
            arrowprops={"arrowstyle": "-", "color": SPEND["attention"], "shrinkB": 0},
        )
    _dress(axes, "seconds a step", 1.16 * highest, places)
    _add_legend(axes, SPEND, LABELS)


def _draw_memory(axes: Any, found: Survey, places: list[float]) -> None:
    """Stacked gigabytes, and what may be used of a GPU as a line."""
    _stack(axes, found, places, [_held(one) for one in found.estimates], HELD)
    limit = ADVISED_SHARE * found.setting.memory_bytes / 1e9
    axes.axhline(limit, color=INK, linewidth=1.0, linestyle=(0, (5, 4)), zorder=3)
    axes.annotate(
        f"{ADVISED_SHARE:.0%} of {found.setting.memory_bytes / 1e9:g} GB",
        (1.0, limit),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    highest = max(one.memory.total for one in found.estimates) / 1e9
    _dress(axes, "GB a GPU", 1.12 * max(limit, min(highest, 3 * limit)), places)
    _add_legend(axes, HELD, HELD_LABELS)


def _stack(
    axes: Any,
    found: Survey,
    places: list[float],
    parts: list[dict[str, float]],
    colors: dict[str, str],
) -> None:
    """Bars of parts, pale where the choice does not fit."""
    alphas = [1.0 if one.fits else PALE for one in found.estimates]
    for place, part, alpha in zip(places, parts, alphas, strict=True):
        bottom = 0.0
        for name, color in colors.items():
            bar = {"color": color, "alpha": alpha, "linewidth": 0, "zorder": 2}
            axes.bar(place, part[name], 0.86, bottom=bottom, **bar)
            bottom += part[name]


def _name_bars(axes: Any, found: Survey, places: list[float]) -> None:
    """The strategy below each bar, the split below each group."""
    names = [one.choice.strategy for one in found.estimates]
    names = ["" if name == ALONE else name for name in names]
    axes.set_xticks(places, names, rotation=90, fontsize=9)
    groups: dict[tuple[int, int], list[float]] = {}
    for one, place in zip(found.estimates, places, strict=True):
        groups.setdefault((one.choice.data, one.choice.sequence), []).append(place)
    for (data, sequence), members in groups.items():
        axes.annotate(
            f"{data:,} x {sequence:,}",
            (sum(members) / len(members), 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -52),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=10 if len(groups) <= 12 else 7,
        )


def _dress(axes: Any, unit: str, highest: float, places: list[float]) -> None:
    axes.set_ylabel(unit, labelpad=8)
    axes.set_ylim(0, highest)
    axes.set_xlim(places[0] - 1.2, places[-1] + 1.2)
    axes.tick_params(length=0, pad=4)
    axes.locator_params(axis="y", nbins=5)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def _add_legend(axes: Any, colors: dict[str, str], labels: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(color=color, label=labels[name]) for name, color in colors.items()],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=len(colors),
        frameon=False,
        borderpad=0,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.6,
    )


def _draw_frame(figure: Any, found: Survey) -> None:
    """What it is above, what it rests on below."""
    setting, left = found.setting, 0.022
    links, rates = setting.links, setting.rates
    gpus = counted(setting.num_gpus, "GPU")
    title = f"{setting.load.name}, {counted(setting.tokens, 'token')}, {gpus}: estimate"
    figure.text(left, 0.97, title, fontsize=20, fontweight="bold", va="top")
    claim = (
        f"A training step over {counted(setting.batch, 'sample')}, by split (data x sequence) and "
        "strategy. Pale: does not fit. Nothing of this was run."
    )
    figure.text(left, 0.905, claim, fontsize=12, color=MUTED, va="top")
    basis = (
        f"Rates measured on one {rates.device} ({', '.join(rates.sources)}). Given: "
        f"{links.node_bytes_per_s / 1e9:g} GB/s inside nodes of "
        f"{counted(links.gpus_per_node, 'GPU')}, {links.network_bytes_per_s / 1e9:g} GB/s between."
    )
    figure.text(left, 0.02, basis, fontsize=9.5, color=MUTED, va="bottom")
