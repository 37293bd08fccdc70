"""``flashpoint probe``: how well a run's features serve other data, from a few images a class."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.lab.cli.run_arguments import (
    BatchSize,
    Checkpoint,
    ClassList,
    Device,
    JsonFile,
    RunFolder,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flashpoint.lab.evaluation.few_shot import ProbeResult

LEGEND = (
    "Ridge regression on frozen features of the head's input, l2 = 1024, tested on the whole "
    "test split. Spread: standard deviation over the seeds."
)


Data: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Images with a training and a test split: a folder with train and val, "
        "cifar10:DIR, hf:DIR, digits, ...",
    ),
]
Shots: TypeAlias = Annotated[
    int, typer.Option(min=1, max=1_000_000, help="Training images a class.")
]
Seeds: TypeAlias = Annotated[
    int, typer.Option(min=1, max=1000, help="Choices of images, from seed 0 on.")
]


def probe(
    run: RunFolder,
    data: Data,
    classes: ClassList = None,
    shots: Shots = 10,
    seeds: Seeds = 3,
    checkpoint: Checkpoint = "best",
    batch_size: BatchSize = 256,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Few-shot accuracy of a run's frozen features on other data, mean and spread over seeds."""
    from rich.console import Console

    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.evaluation.probe import probe as probe_model
    from flashpoint.lab.evaluation.probe import probe_config

    run_arguments.require_writable(json_file, "--json")
    found, model, step = run_arguments.open_classifier(run, checkpoint, device)
    with run_arguments.counting("Reading features") as on_count:
        result = probe_model(
            model,
            probe_config(found.config.data, data, str(classes) if classes else None),
            shots=shots,
            seeds=range(seeds),
            batch_size=batch_size,
            on_count=on_count,
        )
    is_stdout = json_file == run_arguments.STDOUT
    Console(stderr=is_stdout).print(_draw(result, f"{run}, step {step}, on {data}"))
    run_arguments.warn_of_broken(result.broken)
    if json_file is not None:
        numbers = {**asdict(result), "mean": result.mean, "spread": result.spread}
        named = str(classes) if classes else None
        context = {"run": str(run), "step": step, "data": data, "classes": named}
        run_arguments.write_json({**context, **numbers}, json_file)


def _draw(result: "ProbeResult", title: str) -> "RenderableType":
    """One row: the mean, the spread, and every seed."""
    from rich.console import Group
    from rich.text import Text

    from flashpoint.lab.cli.terminal import plain_table

    seeds = [f"seed {seed}" for seed in result.seeds]
    columns = ("shots", "accuracy", "spread", *seeds, "classes", "test images")
    table = plain_table(*columns, left=0)
    table.add_row(
        str(result.shots),
        Text(f"{result.mean:.2%}", style="bold"),
        "-" if result.spread is None else f"{result.spread:.2%}",
        *(f"{accuracy:.2%}" for accuracy in result.accuracies),
        f"{result.num_classes:,}",
        f"{result.num_test:,}",
    )
    return Group(Text(title, style="bold"), table, Text(f"\n{LEGEND}", style="dim"))
