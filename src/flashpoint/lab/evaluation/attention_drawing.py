"""Attention as pictures: maps over images, statistics as heat maps; matplotlib draws them.

The paper is transparent and the ink a gray that reads on white and on black alike.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from flashpoint.errors import InputError, require
from flashpoint.lab.evaluation.attention_maps import AttentionMaps
from flashpoint.lab.evaluation.attention_statistics import AttentionStatistics

INK, HEAT = "#7A828E", "inferno"
PANEL, TITLE_HEIGHT = 1.35, 0.32  # inches
DPI = 160
STYLE: dict[Any, Any] = {
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


class Statistic(NamedTuple):
    """What one heat map shows; ``min_keys``: with fewer keys it says nothing."""

    name: str
    title: str
    min_keys: int = 1


STATISTICS = (
    Statistic("sparsity", "share of zero weights"),
    Statistic("mass", "mass of a row"),
    Statistic("entropy", "entropy of a row, nats"),
    Statistic("zero_tiles_64", "share of zero tiles, 64 x 64", 65),
    Statistic("zero_tiles_128", "share of zero tiles, 128 x 128", 129),
)
COLUMNS = 3


def draw_maps(maps: AttentionMaps, file: Path) -> None:
    """One row for each image: the image, then the map of each layer over it.

    Every map is drawn from its own least to its own greatest value, so that maps of relu and of
    softmax, whose sizes differ, can be compared by shape.
    """
    num_rows, num_columns = len(maps.images), 1 + len(maps.layers)
    size = (PANEL * num_columns, PANEL * num_rows + TITLE_HEIGHT)
    with _drawing(size, STYLE, file) as figure:
        axes = figure.subplots(num_rows, num_columns, squeeze=False)
        figure.subplots_adjust(
            left=0.01,
            right=0.99,
            bottom=0.01,
            top=1 - TITLE_HEIGHT / size[1],
            wspace=0.06,
            hspace=0.06,
        )
        titles = ["image", *(f"layer {layer}" for layer in maps.layers)]
        for column, title in enumerate(titles):
            axes[0][column].set_title(title, fontsize=9, pad=4)
        for row, image in enumerate(maps.images):
            pixels = _pixels(image)
            _show(axes[row][0], pixels)
            for column, layer_maps in enumerate(maps.maps, start=1):
                _show(axes[row][column], pixels.mean(-1) * 0.6 + 0.1, layer_maps[row])


def _show(axes: Any, pixels: Any, heat: Tensor | None = None) -> None:
    """An image, and over it a map that is the more opaque the larger it is."""
    extent = (0, 1, 0, 1)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
    if heat is not None:
        values = _stretch(heat)
        axes.imshow(
            values,
            cmap=HEAT,
            vmin=0,
            vmax=1,
            alpha=0.25 + 0.5 * values,
            extent=extent,
            interpolation="nearest",
        )
    axes.set_axis_off()


def draw_statistics(statistics: AttentionStatistics, file: Path) -> None:
    """A heat map of layers and heads for each statistic; a cross marks a dead head."""
    shown = [s for s in STATISTICS if statistics.num_keys >= s.min_keys]
    num_layers = 1 + max(head.layer for head in statistics.heads)
    num_heads = 1 + max(head.head for head in statistics.heads)
    num_rows = math.ceil(len(shown) / COLUMNS)
    size = (COLUMNS * (0.9 + 0.42 * num_heads), num_rows * (0.9 + 0.28 * num_layers))
    with _drawing(size, {**STYLE, "font.size": 7.5}, file) as figure:
        figure.set_layout_engine("constrained")
        for place, statistic in enumerate(shown, start=1):
            axes = figure.add_subplot(num_rows, COLUMNS, place)
            values = np.full((num_layers, num_heads), np.nan)
            for head in statistics.heads:
                value = getattr(head, statistic.name)
                values[head.layer, head.head] = np.nan if value is None else value
                if head.is_dead:
                    axes.plot(head.head, head.layer, "x", color=INK, markersize=9)
            _show_cells(axes, values, statistic.title)


def _show_cells(axes: Any, values: Any, title: str) -> None:
    """Colored cells with their numbers."""
    low = np.nanmin(values, initial=0.0)
    high = max(np.nanmax(values, initial=low), low + 1e-9)
    axes.imshow(values, cmap="Oranges", vmin=low, vmax=low + 1.6 * (high - low), aspect="auto")
    for (layer, head), value in np.ndenumerate(values):
        if not np.isnan(value):
            label = format(value, ".2f")
            axes.text(head, layer, label, ha="center", va="center", color="#2B2F36", fontsize=6.5)
    axes.set(title=title, xlabel="head", xticks=range(values.shape[1]))
    axes.set(ylabel="layer", yticks=range(values.shape[0]))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _pixels(image: Tensor) -> Any:
    """[S, S, 3] in [0, 1] of an image [C, S, S] in [-1, 1]."""
    color = image.expand(3, -1, -1) if image.shape[0] == 1 else image
    return ((color.permute(1, 2, 0).float() + 1) / 2).clamp(0, 1).numpy()


def _stretch(heat: Tensor) -> Any:
    """From 0 to 1; a map that is the same everywhere is 0."""
    low, high = heat.min(), heat.max()
    return ((heat - low) / (high - low).clamp(min=1e-30)).numpy()


def require_drawing() -> None:
    """Refuse to start what could not be drawn in the end."""
    require("matplotlib", "drawing attention")


@contextmanager
def _drawing(size: tuple[float, float], style: dict[Any, Any], file: Path) -> Generator[Any]:
    """A figure of ``size`` inches that is saved at the end."""
    require_drawing()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(style):
        figure = Figure(figsize=size)
        yield figure
        try:
            figure.savefig(file, dpi=DPI, transparent=True)
        except OSError as error:
            raise InputError(f"cannot write {file}: {error.strerror}.") from error
