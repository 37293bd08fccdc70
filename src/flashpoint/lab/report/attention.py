"""What attention does in each run: pictures and numbers that ``flashpoint inspect`` left there."""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flashpoint.lab.report.figure import embed, heat_figure, tabs
from flashpoint.lab.report.html import Html, join, tag
from flashpoint.lab.runs.run_files import Row, RunFiles, number
from flashpoint.lab.runs.stored import read_bytes


class Statistic(NamedTuple):
    """A number of a head: its key in the file, its title, d3's format, the keys it needs."""

    name: str
    title: str
    form: str
    min_keys: int = 1


STATISTICS = (
    Statistic("sparsity", "Zero weights", ".0%"),
    Statistic("mass", "Mass of a row", ".2f"),
    Statistic("entropy", "Entropy of a row, nats", ".2f"),
    Statistic("zero_tiles_64", "Zero tiles, 64 x 64", ".0%", min_keys=65),
    Statistic("zero_tiles_128", "Zero tiles, 128 x 128", ".0%", min_keys=129),
)
MAPS_NOTE = (
    "How much each patch counts for what is read off the model: the attention it receives, "
    "averaged over queries and heads, or with a class token the weights in that token's row. "
    "Every map runs from its own least (dark) to its own greatest value (bright)."
)
STATISTICS_NOTE = (
    "By layer and head. Mass is the sum of a query's weights, 1 for softmax. Entropy is that of "
    "the weights made to sum to one. With more than 64 tokens, zero tiles are those of so many "
    "queries and keys whose weights are all exactly zero, which a kernel could skip."
)


def attention(runs: Sequence[RunFiles]) -> Html | None:
    """Maps and statistics of the runs that have them; None if no run has."""
    maps = [_maps(run) for run in runs if run.maps]
    statistics = {
        run.name: _statistics(run.name, run.statistics) for run in runs if run.statistics
    }
    if not maps and not statistics:
        return None
    parts: list[Html] = []
    if maps:
        parts += [tag("p", MAPS_NOTE, class_="note"), tag("div", *maps, class_="grid")]
    if statistics:
        parts += [tag("h3", "In numbers"), tag("p", STATISTICS_NOTE, class_="note")]
        parts.append(tabs("run", statistics))
    return join(parts)


def _maps(run: RunFiles) -> Html:
    pictures = [_picture(file, f"attention maps of {run.name}") for file in run.maps]
    return tag("figure", tag("figcaption", run.name), *pictures)


def _picture(file: Path, description: str) -> Html:
    data = base64.b64encode(read_bytes(file)).decode("ascii")
    return tag("img", src=f"data:image/png;base64,{data}", alt=description)


def _statistics(name: str, data: Row) -> Html:
    """A sentence on dead heads and one heat map for each statistic."""
    heads: list[Row] = list(data.get("heads", ()))
    dead = [f"{h.get('layer')}.{h.get('head')}" for h in heads if h.get("is_dead")]
    verdict = f"Dead heads (layer.head): {', '.join(dead)}." if dead else "No head is dead."
    charts = [
        embed(
            heat_figure(
                statistic.title,
                matrix,
                x_title="head",
                y_title="layer",
                form=statistic.form,
                limits=(0.0, _greatest(matrix)),
            )
        )
        for statistic in STATISTICS
        if (number(data, "num_keys") or 0) >= statistic.min_keys
        and (matrix := _matrix(heads, statistic.name))
    ]
    images = f"{data.get('num_images', '?')} images of {data.get('data', '?')}"
    seen = f"step {data.get('step', '?')}, {images}, {data.get('num_keys', '?')} tokens. {verdict}"
    return join(
        [tag("p", tag("strong", name), f": {seen}"), tag("div", *charts, class_="grid three")]
    )


def _matrix(heads: Sequence[Row], name: str) -> list[list[float | None]]:
    """Values by layer and head; empty if there are none."""
    layers: dict[Any, list[float | None]] = {}
    for head in heads:
        layers.setdefault(head.get("layer"), []).append(number(head, name))
    return list(layers.values())


def _greatest(matrix: Sequence[Sequence[float | None]]) -> float:
    """The upper end of the colors; never zero."""
    found = max((v for row in matrix for v in row if v is not None), default=0.0)
    return found if found > 0 and math.isfinite(found) else 1.0
