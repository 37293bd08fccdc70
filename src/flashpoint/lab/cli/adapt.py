"""``flashpoint adapt``: bring a softmax run's model to other attention."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import (
    Checkpoint,
    Fresh,
    RunFolder,
    parse_checkpoint,
    path_of,
)
from flashpoint.lab.cli.train import run_to_end

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flashpoint.lab.runs.record import Record
    from flashpoint.lab.training.run_folder import Run

SHARE = 0.05


def adapt(
    run: RunFolder,
    attention: Annotated[
        str, typer.Option(metavar="WORD", help="What to compute, as relu4/sum, relu or sigmoid.")
    ] = "relu4/sum",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Images with the same classes: digits, cifar10:DIR, a folder, shards:PATTERN, "
            "hf:DIR.",
            show_default="the run's own data",
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=10.0,
            help="Updates, as a share of those of RUN's training.",
            show_default=str(SHARE),
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=2, help="The same as a number.")] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_536,
            help="Fine-tune by updates of this rank; kernels keep their values.",
            show_default="all weights",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the new run.",
            show_default="RUN_ATTENTION",
            parser=path_of,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the config, as adapt.distill_weight=0.9; may be repeated.",
        ),
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Bring the softmax model of an image run to other attention, and say what it cost.

    \b
    flashpoint adapt runs/softmax --attention relu4/sum
    flashpoint adapt runs/softmax --attention relu --share 0.2 --out runs/relu_20
    flashpoint adapt runs/softmax --steps 500 --set adapt.anneal_share=0

    Gain and bias of every head are fitted to softmax's output on a few batches. A fifth of the
    updates then match each layer's attention to the softmax model's. The others fine-tune the
    whole model on labels and on the softmax model's answers, while attention goes over from
    softmax in the first quarter. The table has the accuracy of every stage.

    The result is a run's folder like any other, for evaluate, probe, inspect, report and train
    --weights. Its config.yaml has all settings. The same command again goes on from the newest
    checkpoint. Runs on text cannot be adapted yet.
    """
    from rich.console import Console

    from flashpoint.lab.training import config_file
    from flashpoint.lab.training.adapting_recipe import adapting_values
    from flashpoint.lab.training.run_folder import open_run

    found = open_run(run)
    step = found.find_step(parse_checkpoint(checkpoint))
    total = _updates(found, share, steps)
    values = adapting_values(found, step, attention, total)
    values["adapt"]["rank"] = rank
    if data is not None:
        values["data"] |= {"train": data, "validation": data}
    config = config_file.parse(values, changes or [])
    folder = out or run.with_name(f"{run.name}_{attention.replace('/', '_')}")
    if folder.resolve() == run.resolve():
        raise InputError(f"--out {folder} is the run itself. Pass another folder.")
    record = run_to_end(config, folder, fresh=fresh)
    Console().print(_table(record, f"{run}, step {step}, to {attention}"))


def _updates(run: "Run", share: float | None, steps: int | None) -> int:
    """How many updates there are in all."""
    if share is not None and steps is not None:
        raise InputError(f"--share {share:g} and --steps {steps} are both given. Pass one.")
    if steps is not None:
        return steps
    if run.record is None:
        raise InputError(
            f"{run.path} has not ended, so --share has nothing to be a share of. Pass --steps N."
        )
    share = SHARE if share is None else share
    found = round(share * run.record.steps)
    if found < 2:
        raise InputError(
            f"--share {share:g} of the {run.record.steps} steps of {run.path} is {found}, less "
            "than 2. Pass more, or --steps N."
        )
    return found


def _table(record: "Record", title: str) -> "RenderableType":
    """What every stage of the run reached."""
    from rich.console import Group
    from rich.text import Text

    from flashpoint.lab.cli.terminal import plain_table

    start: dict[str, Any] = record.notes["weights"]
    layers = start["layers"]
    table = plain_table("model", "top-1", "loss", "layer error")
    for name, numbers in {**start["stages"], "adapted": record.validation}.items():
        errors = layers.get(name)
        mean = f"{sum(errors) / len(errors):.3f}" if errors else ""
        table.add_row(name, f"{numbers['top1']:.2%}", f"{numbers['loss']:.4f}", mean)
    told = (
        "layer error: squared distance of attention outputs to the teacher's, on its inputs, "
        "over their size; mean of the layers."
    )
    return Group(Text(title, style="bold"), table, Text(told))
