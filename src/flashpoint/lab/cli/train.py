"""``flashpoint train``: train what a config file describes, or a model by its name."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flashpoint.errors import FlashpointError, InputError, LostRankError, hint
from flashpoint.lab.cli.run_arguments import Fresh, path_of

if TYPE_CHECKING:
    from flashpoint.lab.runs.record import Record
    from flashpoint.lab.training.config import TrainConfig

STOPPED = 75
"""Exit status of a run that was asked to stop and saved itself; EX_TEMPFAIL, "try again"."""
SECONDS_TO_SPEAK = 30.0
"""So long the other processes of a run wait at most for the first one to say why all end."""
SECONDS_AFTER_LOSS = 2.0
"""So long all wait where a process was lost, so that torchrun sees which one it was."""


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|MODEL", help="A YAML file, or a model as vit_s16 or reluformer_base."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Images to train and validate on: digits, cifar10:DIR, a folder, shards:PATTERN, "
            "hf:DIR. Or documents: documents:DIR, text:DIR, jsonl:DIR, hf:DIR. Or passages: "
            "passages:DIR.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the run.", show_default="runs/NAME", parser=path_of
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|FILE",
            help="Start from these weights: an earlier run's best or its checkpoints/step_N, or a "
            "safetensors file of a ViT of ours, timm's or Hugging Face's. A head of another size "
            "is made anew.",
            show_default="fresh ones",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the config, as optimizer.lr=3e-4; may be repeated.",
        ),
    ] = None,
    fresh: Fresh = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the whole config and the cost; train nothing.")
    ] = False,
) -> None:
    """Train a model; checkpoints, curves and a record lie in the run's folder.

    \b
    flashpoint train configs/digits.yaml
    flashpoint train configs/digits.yaml --set model.attention=softmax --out runs/softmax
    flashpoint train vit_s16 --data DIR
    flashpoint train vit_s16 --data OTHER --weights runs/vit_s16 --out runs/tuned
    flashpoint train reluformer_base --data documents:DIR
    torchrun --nproc-per-node 8 -m flashpoint train configs/vit_i1k.yaml --data DIR
    torchrun --nproc-per-node 8 -m flashpoint train vit_l16 --data DIR --set parallel.sequence=4

    Processes of torchrun share the samples of a batch. In the config, parallel: {data: 2,
    sequence: 2, tensor: 2} also shares tokens and heads, and shard: true the weights. How
    shared tokens attend is strategy: auto, ring, gather, reduce or ulysses.

    The same command again goes on from the newest checkpoint, also after a crash; --fresh begins
    anew. SIGTERM and Ctrl-C save a checkpoint and end with status 75; errors end with status 2.
    """
    folder = out or Path("runs") / Path(what).stem
    is_first = os.environ.get("RANK", "0") == "0"
    try:
        config = _config(what, data, weights, changes or [])
        said = ""
        if not (_is_file(what) or _names_batch(changes or [])):
            config, said = _choose_batch(config, None if fresh else folder)
        if dry_run:
            _show(config, said)
            return
        if said and is_first:
            typer.echo(said, err=True)
        run_to_end(config, folder, fresh=fresh)
    except LostRankError as error:
        if is_first:
            typer.echo(f"error: {error}", err=True)
        time.sleep(SECONDS_AFTER_LOSS)
        raise typer.Exit(2) from None
    except FlashpointError as error:
        if is_first:
            raise
        # What ends all processes is said once, by the first. Once one has ended, torchrun ends the
        # others: this one stays until then. Should nobody end it, it alone knows of the error.
        time.sleep(SECONDS_TO_SPEAK)
        _say_and_leave(error)


def _config(what: str, data: str | None, weights: str | None, changes: list[str]) -> "TrainConfig":
    """The config that a file or a name means, with data, weights and changes in place."""
    from flashpoint.lab.training import config_file

    values = _values(what, data)
    if weights is not None:
        if values.get("task") in ("text", "language"):
            raise InputError(f"--weights is for models of images; {what} trains one of text.")
        values["weights"] = weights
    return config_file.parse(values, changes)


def _values(what: str, data: str | None) -> "dict[str, Any]":
    """Plain data of the config, before changes."""
    from flashpoint.lab.runs.stored import read_yaml
    from flashpoint.lab.training.config_file import find_config

    if _is_file(what):
        values = read_yaml(find_config(what))
        if data is not None:  # as it is: in --set it would be YAML
            if values.get("task") != "language":
                _check_kind(what, data, is_text=values.get("task") == "text")
            given = values.get("data")
            section = given if isinstance(given, dict) else {}
            values = {**values, "data": {**section, "train": data, "validation": data}}
        return values
    if data is None:
        _check_model(what)
        raise InputError(f"train {what} needs {_needs(what)}.")
    from flashpoint.lab.training.recipes import recipe
    from flashpoint.models.registry import is_text_model

    _check_kind(what, data, is_text=is_text_model(what))
    return recipe(what, data)


def _is_file(what: str) -> bool:
    from flashpoint.lab.training.config_file import find_config

    return what.endswith((".yaml", ".yml")) or find_config(what).is_file()


def _names_batch(changes: list[str]) -> bool:
    return any(change.partition("=")[0].strip() == "batch_size" for change in changes)


def _choose_batch(config: "TrainConfig", folder: Path | None) -> "tuple[TrainConfig, str]":
    """The batch that an earlier start of this run chose, or one for these data and this device.

    Args:
        config: of the run.
        folder: where it may have begun; None begins anew.
    """
    from dataclasses import replace

    from flashpoint.lab.runs.names import CONFIG
    from flashpoint.lab.training import config_file
    from flashpoint.lab.training.ranks import choose_device
    from flashpoint.lab.training.recipes import choose_batch

    if folder is not None and (folder / CONFIG).is_file():
        return replace(config, batch_size=config_file.load(folder / CONFIG).batch_size), ""
    device = choose_device("auto").type if config.device == "auto" else config.device
    parallel, size = config.parallel, int(os.environ.get("WORLD_SIZE", "1"))
    shares = max(1, size // (parallel.sequence * parallel.tensor))
    return choose_batch(config, device, shares)


def _check_kind(what: str, data: str, *, is_text: bool) -> None:
    """Refuse images for a model of text, and documents for one of images."""
    from flashpoint.lab.data.image_kinds import names_images
    from flashpoint.lab.data.text.document_kinds import names_documents

    if is_text and names_images(data):
        raise InputError(
            f"{what} trains a model of text, and --data {data} are images. Pass documents, "
            "as --data documents:DIR, or train a model of images, as vit_s16."
        )
    if not is_text and names_documents(data):
        raise InputError(
            f"{what} trains a model of images, and --data {data} are documents. Pass images, "
            "as --data digits, or train a model of text, as reluformer_base."
        )


def _needs(model: str) -> str:
    """What a model learns from, and how to say where it is."""
    from flashpoint.models.registry import is_text_model

    if is_text_model(model):
        return "documents: pass --data WHERE, as --data documents:DIR"
    return "images: pass --data WHERE, as --data digits"


def _check_model(what: str) -> None:
    """Refuse what is neither a file nor a model, with the nearest of both."""
    from flashpoint.lab.training.config_file import PUBLISHED, list_published
    from flashpoint.models.registry import list_models, model_config

    try:
        model_config(what)
    except InputError as error:
        if os.path.isdir(what):
            raise InputError(
                f"{what!r} is a folder. Name a model first: "
                f"flashpoint train vit_s16 --data {what}."
            ) from error
        files = (*list_published(), *Path(PUBLISHED).glob("*.yaml"))
        configs = {file.stem: f"{PUBLISHED}/{file.name}" for file in files}
        near = repr(configs[what]) if what in configs else None
        question = (
            f"Did you mean {near}? " if near else hint(what, [*configs.values(), *list_models()])
        )
        raise InputError(
            f"{what!r} is neither a config file nor a model. {question}See `flashpoint models`."
        ) from error


def run_to_end(config: "TrainConfig", folder: Path, *, fresh: bool) -> "Record":
    """Train, and say in a line how it ended; gives the record."""
    import torch

    from flashpoint.lab.runs.failure import Preempted, RunError
    from flashpoint.lab.training.loop import train as run
    from flashpoint.lab.training.progress import describe_numbers
    from flashpoint.lab.training.run_folder import LostError

    is_first = os.environ.get("RANK", "0") == "0"
    try:
        record = run(config, folder, fresh=fresh)
    except LostError as error:
        if not _may_ask():
            raise
        typer.confirm(f"{error} Begin anew?", abort=True, err=True)
        return run_to_end(config, folder, fresh=True)
    except InputError as error:
        if not is_first:  # its own share of the data, perhaps: the first may know nothing of it
            _say_and_leave(error)
        raise
    except Preempted as stop:
        if is_first:
            typer.echo(str(stop), err=True)
        raise typer.Exit(STOPPED) from stop
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"a batch of {config.batch_size} does not fit into the GPU's memory in "
            f"{config.accumulate} parts. Pass --set accumulate={2 * config.accumulate} or more."
        ) from error
    if is_first:
        typer.echo(
            f"{folder}: {describe_numbers(record.validation)} after {record.steps} steps, "
            f"{record.seconds:.0f} s, {record.samples_per_s:,.0f} {record.unit}/s"
        )
    return record


def _say_and_leave(error: FlashpointError) -> NoReturn:
    """End a process that is not the first, with a line."""
    typer.echo(f"error in process {os.environ['RANK']}: {error}", err=True)
    raise typer.Exit(2) from None


def _may_ask() -> bool:
    """Whether somebody sees a question and can answer it."""
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return is_alone and sys.stdin.isatty() and sys.stderr.isatty()


def _show(config: "TrainConfig", said: str) -> None:
    """The complete config as a file, and what it costs as comments."""
    from flashpoint.lab.training import config_file
    from flashpoint.lab.training.given_weights import describe_start
    from flashpoint.lab.training.memory_check import describe_memory
    from flashpoint.lab.training.ranks import Ranks, choose_device
    from flashpoint.lab.training.task_registry import task_class

    ranks = Ranks(device=choose_device("cpu" if config.device == "cpu" else "auto"))
    task = task_class(config)(config, ranks)
    memory = describe_memory(task, ranks)
    start = task.begin()
    steps = config.total_steps(task.steps_per_epoch)
    samples = task.samples_until(steps)
    size = sum(parameter.numel() for parameter in task.build_model().parameters())
    typer.echo(
        f"# {steps} steps, {samples:,} {task.unit}, {size:,} parameters, "
        f"{samples * task.flops_per_sample:.3g} FLOPs in all"
    )
    for line in (said, task.remark, memory, describe_start(start) if start else ""):
        if line:
            typer.echo(f"# {line}")
    typer.echo(config_file.dump(task.config), nl=False)
