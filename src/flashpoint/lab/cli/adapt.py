"""``flashpoint adapt``: bring a softmax run's model to other attention."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import Checkpoint, Fresh, parse_checkpoint, path_of
from flashpoint.lab.cli.train import run_to_end

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flashpoint.lab.runs.record import Record
    from flashpoint.lab.training.run_folder import Run

SHARE = 0.05


class LayersName(StrEnum):
    """What ``--layers`` takes."""

    ALL = "all"
    EVERY_SECOND = "every_second"


def adapt(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The run's folder, or a GPT-2's that transformers saved.",
            parser=path_of,
        ),
    ],
    attention: Annotated[
        str, typer.Option(metavar="WORD", help="What to compute, as relu4/sum, relu or sigmoid.")
    ] = "relu4/sum",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Images with the same classes: digits, cifar10:DIR, a folder, shards:PATTERN, "
            "hf:DIR. Of a language model: passages:DIR.",
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
    layers: Annotated[
        LayersName, typer.Option(help="Of a language model: which layers are replaced.")
    ] = LayersName.ALL,
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
    """Bring a softmax model of images or of language to other attention, and say what it cost.

    \b
    flashpoint adapt runs/softmax --attention relu4/sum
    flashpoint adapt runs/softmax --attention relu --share 0.2 --out runs/relu_20
    flashpoint adapt runs/softmax --steps 500 --set adapt.anneal_share=0
    flashpoint adapt runs/gpt2 --attention relu4/sum --layers every_second
    flashpoint adapt HF_FOLDER --data passages:DIR --steps 2000

    Gain and bias of every head are fitted to softmax's output on a few batches. A fifth of the
    updates then match each layer's attention to the softmax model's. The others fine-tune the
    whole model on labels and on the softmax model's answers, while attention goes over from
    softmax in the first quarter. The table has the accuracy of every stage, or its perplexity.

    The result is a run's folder like any other, for evaluate, report and export, of images for
    probe, inspect and train --weights too. Its config.yaml has all settings. The same command
    again goes on from the newest checkpoint. Runs that translate cannot be adapted yet.
    """
    from rich.console import Console

    from flashpoint.lab.training import config_file
    from flashpoint.lab.training.adapting_recipe import is_saved_model

    if is_saved_model(run):
        values, title = _of_folder(run, data, attention, (share, steps), layers), str(run)
    else:
        values, title = _of_run(run, checkpoint, attention, (share, steps), layers)
    values["adapt"]["rank"] = rank
    if data is not None:
        values["data"] |= {"train": data, "validation": data}
    config = config_file.parse(values, changes or [])
    folder = out or run.with_name(f"{run.name}_{attention.replace('/', '_')}")
    if folder.resolve() == run.resolve():
        raise InputError(f"--out {folder} is the run itself. Pass another folder.")
    record = run_to_end(config, folder, fresh=fresh)
    Console().print(_table(record, f"{title}, to {attention}"))


def _of_run(
    path: Path,
    checkpoint: str,
    attention: str,
    length: tuple[float | None, int | None],
    layers: LayersName,
) -> tuple[dict[str, Any], str]:
    """The config that adapts a run's model, as plain data, and the model in words."""
    from flashpoint.lab.training.adapting_recipe import adapting_values
    from flashpoint.lab.training.run_folder import open_run

    found = open_run(path)
    step = found.find_step(parse_checkpoint(checkpoint))
    total = _updates(found, *length)
    return adapting_values(found, step, attention, total, layers.value), f"{path}, step {step}"


def _of_folder(
    path: Path,
    data: str | None,
    attention: str,
    length: tuple[float | None, int | None],
    layers: LayersName,
) -> dict[str, Any]:
    """The same for a folder that transformers wrote, of whose training nothing is known."""
    from flashpoint.lab.training.adapting_recipe import folder_values

    share, steps = length
    if data is None or steps is None or share is not None:
        raise InputError(
            f"{path} is a model that transformers saved: pass --data passages:DIR and --steps N."
        )
    return folder_values(path, data, attention, steps, layers.value)


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
    is_text = "perplexity" in record.validation
    table = plain_table("model", "perplexity" if is_text else "top-1", "loss", "layer error")
    for name, numbers in {**start["stages"], "adapted": record.validation}.items():
        errors = layers.get(name)
        mean = f"{sum(errors) / len(errors):.3f}" if errors else ""
        best = f"{numbers['perplexity']:.2f}" if is_text else f"{numbers['top1']:.2%}"
        table.add_row(name, best, f"{numbers['loss']:.4f}", mean)
    told = (
        "layer error: squared distance of attention outputs to the teacher's, on its inputs, "
        "over their size; mean of the layers."
    )
    return Group(Text(title, style="bold"), table, Text(told))
