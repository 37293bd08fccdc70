"""``flashpoint inspect``: what a run's attention does, in numbers and over images."""

from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.paths import path_of
from flashpoint.lab.cli.run_arguments import Checkpoint, Device, JsonFile, RunFolder
from flashpoint.lab.runs.names import ATTENTION, MAPS, STATISTICS, STATISTICS_PICTURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from flashpoint.lab.evaluation.attention_statistics import AttentionStatistics, HeadStatistics

MAX_ROWS = 64
"""More heads than this are shown layer by layer."""


Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE", help="Images to look at.", show_default="the run's validation data"
    ),
]
Samples: TypeAlias = Annotated[
    int, typer.Option(min=1, max=100_000_000, help="Images for the statistics.")
]
Images: TypeAlias = Annotated[int, typer.Option(min=0, max=64, help="Images to draw maps on.")]
Layers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="N,N...",
        help="Layers to draw, from 0; -1 is the last.",
        show_default="up to five, first to last",
    ),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where files go.", show_default="RUN/attention", parser=path_of
    ),
]


def inspect(
    run: RunFolder,
    data: Data = None,
    samples: Samples = 256,
    images: Images = 4,
    layers: Layers = None,
    out: Out = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Attention by layer and head: sparsity, mass, entropy, dead heads; maps over images.

    Writes statistics.json, statistics.png and maps.png, which the report shows.
    A map says how much attention a patch receives from all queries, or what
    the class token sees where the model has one.
    """
    from rich.console import Console

    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.evaluation.run_evaluation import data_at
    from flashpoint.lab.evaluation.run_inspection import inspect_model

    run_arguments.require_writable(json_file, "--json")
    chosen = _parse_layers(layers)
    found, model, step = run_arguments.open_classifier(run, checkpoint, device)
    folder = run / ATTENTION if out is None else out
    shown = data_at(found.config.data, data)
    with run_arguments.counting("Looking") as on_count:
        statistics = inspect_model(
            model,
            shown,
            folder,
            step=step,
            num_samples=samples,
            num_images=images,
            layers=chosen,
            on_count=on_count,
        )
    console = Console(stderr=json_file == run_arguments.STDOUT)
    seen = f"{statistics.num_images} images of {shown.validation}"
    title = f"Attention of {run}, step {step}, {seen}"
    console.print(_draw(statistics, title))
    files = f"{folder}: {', '.join([STATISTICS, STATISTICS_PICTURE, *([MAPS] if images else [])])}"
    console.print(files, markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        context = {"run": str(run), "step": step, "data": shown.validation}
        run_arguments.write_json({**context, **statistics.to_dict()}, json_file)


def _parse_layers(text: str | None) -> "list[int] | None":
    """What --layers says."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--layers {text!r} must be whole numbers, as 0,5 or -1.") from error


def _draw(statistics: "AttentionStatistics", title: str) -> "RenderableType":
    """One row for each head, or for each layer if there are many heads."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    by_head = len(statistics.heads) <= MAX_ROWS
    for heading in ("layer", "head" if by_head else "heads", "zeros"):
        table.add_column(heading, justify="right")
    for tile in _tiles(statistics):
        table.add_column(f"zero {tile}x{tile}", justify="right")
    for heading in ("empty rows", "mass", "entropy", ""):
        table.add_column(heading, justify="right")
    for layer, group in groupby(statistics.heads, key=lambda head: head.layer):
        heads = list(group)
        for row in [[head] for head in heads] if by_head else [heads]:
            label = str(row[0].head) if by_head else str(len(heads))
            table.add_row(str(layer), label, *_cells(row, _tiles(statistics)))
        if by_head:
            table.add_section()
    legend = Text(f"\n{_legend(statistics, by_head)}\n", style="dim")
    return Group(Text(title, style="bold"), table, legend)


def _tiles(statistics: "AttentionStatistics") -> list[int]:
    """Tile sizes of which there is more than one: a single tile says nothing."""
    return [tile for tile in (64, 128) if statistics.num_keys > tile]


def _cells(heads: "Sequence[HeadStatistics]", tiles: "Iterable[int]") -> list[str]:
    """Means over these heads."""
    entropies = [head.entropy for head in heads if head.entropy is not None]
    dead = sum(head.is_dead for head in heads)
    mark = "dead" if len(heads) == 1 else f"{dead} dead"
    return [
        f"{fmean(head.sparsity for head in heads):.1%}",
        *(f"{fmean(getattr(h, f'zero_tiles_{tile}') for h in heads):.1%}" for tile in tiles),
        f"{fmean(head.empty_rows for head in heads):.1%}",
        f"{fmean(head.mass for head in heads):.3f}",
        f"{fmean(entropies):.3f}" if entropies else "-",
        mark if dead else "",
    ]


def _legend(statistics: "AttentionStatistics", by_head: bool) -> str:
    """What the columns mean."""
    tiles = " zero 64x64: tiles of so many queries and keys with zeros only;" * bool(
        _tiles(statistics)
    )
    rows = "" if by_head else " Rows are means over the heads of a layer."
    return (
        f"zeros: share of weights that are exactly zero;{tiles} empty rows: queries without any "
        "weight; mass: sum of a query's weights, 1 for softmax; entropy: of a query's weights "
        f"when they sum to one, in nats, at most {statistics.max_entropy:.3f}.{rows}"
    )
