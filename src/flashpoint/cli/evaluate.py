"""``flashpoint evaluate``: accuracy and loss of a run's model."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.cli.run_arguments import BatchSize, Checkpoint, Device, JsonFile, RunFolder

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flashpoint.evaluation.classification import Classification


class Labels(StrEnum):
    """What ``--labels`` takes."""

    ALL = "all"
    MATCHING = "matching"


Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Images with classes, as in a config: a folder, shards:PATTERN, digits, ...",
        show_default="the run's validation data",
    ),
]
LabelsOption: TypeAlias = Annotated[
    Labels,
    typer.Option(
        help="all: the data have the model's classes. matching: only classes that both have "
        "may answer, found by WordNet id or name."
    ),
]


def evaluate(
    run: RunFolder,
    data: Data = None,
    labels: LabelsOption = Labels.ALL,
    checkpoint: Checkpoint = "best",
    batch_size: BatchSize = 256,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Top-1, top-5 and loss of a run's model, on its validation data or on others.

    \b
    flashpoint evaluate runs/mine
    flashpoint evaluate runs/i21k --data /data/imagenet --labels matching
    """
    from rich.console import Console

    from flashpoint.cli import run_arguments
    from flashpoint.evaluation.run_evaluation import evaluate_run

    run_arguments.require_writable(json_file, "--json")
    found, model, step = run_arguments.open_with_model(run, checkpoint, device)
    with run_arguments.counting("Evaluating") as on_count:
        result = evaluate_run(
            found,
            model,
            data=data,
            is_matching=labels is Labels.MATCHING,
            batch_size=batch_size,
            on_count=on_count,
        )
    where = data or found.config.data.validation
    title = f"{run}, step {step}, on {where}"
    Console(stderr=json_file == run_arguments.STDOUT).print(_draw(result, title))
    for line in _warnings(result):
        typer.secho(line, fg=typer.colors.YELLOW, err=True)
    if json_file is not None:
        context = {
            "run": str(run),
            "step": step,
            "data": where,
            "labels": labels.value,
        }
        run_arguments.write_json({**context, **result.to_dict()}, json_file)


def _draw(result: "Classification", title: str) -> "RenderableType":
    """The numbers, under a line that says of what."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("top-1", "top-5", "loss", "images", "classes"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{result.top1:.2%}",
        f"{result.top5:.2%}",
        f"{result.loss:.4f}",
        f"{result.num_images:,}",
        f"{result.num_classes:,}",
    )
    return Group(Text(title, style="bold"), table)


def _warnings(result: "Classification") -> list[str]:
    """What was left out and why, a line each."""
    from flashpoint.evaluation.class_matching import some

    lines: list[str] = []
    if result.unmatched:
        lines.append(
            f"{len(result.unmatched)} classes of the data are unknown to the model, their "
            f"{result.left_out} images left out: {some(result.unmatched)}."
        )
    if result.broken:
        lines.append(f"{len(result.broken)} images cannot be read: {some(result.broken)}.")
    return lines
