"""``flashpoint export``: a run's model as a file that other programs run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import LANGUAGE_TASKS, Checkpoint, RunFolder, path_of

if TYPE_CHECKING:
    from torch import nn

    from flashpoint.convert import Exported
    from flashpoint.lab.training.run_folder import Run


class Format(StrEnum):
    """What ``--format`` takes."""

    ONNX = "onnx"
    PT2 = "pt2"
    AOTI = "aoti"
    PRETRAINED = "pretrained"


_ENDINGS = {
    Format.ONNX: ".onnx",
    Format.PT2: ".pt2",
    Format.AOTI: ".aoti.pt2",
    Format.PRETRAINED: "-pretrained",
}
_MEGABYTE = 1e6

FormatOption: TypeAlias = Annotated[
    Format,
    typer.Option(
        "--format",
        help="onnx: for onnxruntime and others. pt2: for torch.export.load. aoti: compiled by "
        "AOTInductor. pretrained: a folder for from_pretrained, with a model card.",
    ),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=path_of,
        help="Where to write; a folder if pretrained.",
        show_default="the run's name, here, with _int8 behind it if --int8",
    ),
]
Int8: TypeAlias = Annotated[
    bool,
    typer.Option("--int8", help="Of onnx: matrices of linear layers in int8, a fourth as large."),
]


def export(
    run: RunFolder,
    format_: FormatOption = Format.ONNX,
    out: Out = None,
    checkpoint: Checkpoint = "best",
    int8: Int8 = False,
) -> None:
    """Write a run's model as a file for other programs, and compare it with PyTorch.

    Of a model of images all is exported, of a translator the encoder, of a language model the
    logits of whole rows, without a cache. Batches may have any size, texts any length. Attention
    is written out in plain operations, so nobody needs Flashpoint to run the file; without softmax
    in the model there is none in the file. A pretrained folder has all of any model. Flashpoint
    loads it; a language model's is loaded by transformers, and its README.md says how to put the
    attention back.

    \b
    flashpoint export runs/mine
    flashpoint export runs/mine --int8 --out small.onnx
    flashpoint export runs/mine --format pt2 --checkpoint last
    flashpoint export runs/mine --format pretrained --out mine
    """
    from flashpoint.lab.cli.run_arguments import open_with_model

    if int8 and format_ is not Format.ONNX:
        raise InputError(f"--int8 is for --format onnx, and the format is {format_.value}.")
    opened, model, step = open_with_model(run, checkpoint, "cpu")
    out = out or Path(f"{run.resolve().name}{'_int8' * int8}{_ENDINGS[format_]}")
    if format_ is Format.PRETRAINED:
        if out.resolve() == run.resolve():
            raise InputError(f"--out {out} is the run itself. Name a folder for the model.")
        is_language = opened.config.task in LANGUAGE_TASKS
        write = _write_language_folder if is_language else _write_folder
        write(opened, model, step, out)
        return
    result = _write_file(model, format_, out, int8=int8)
    from flashpoint.models.reluformer import ReLUFormer

    what = "the encoder" if isinstance(model, ReLUFormer) else "the model"
    typer.echo(f"{result.path}: {what} of {run}, step {step}, {_size(result.num_bytes)}")
    typer.echo(
        f"largest difference from PyTorch: {result.max_difference:.1e}, where results are up to "
        f"{result.largest:.1e}"
    )


def _write_file(model: "nn.Module", format_: Format, out: Path, *, int8: bool) -> "Exported":
    from flashpoint.convert import export_onnx, export_pt2

    if format_ is Format.ONNX:
        return export_onnx(model, out, int8="linear" if int8 else "none")
    return export_pt2(model, out, compiled=format_ is Format.AOTI)


def _write_folder(run: "Run", model: Any, step: int, out: Path) -> None:
    """The model with a card of the run's record; of text, with its pieces."""
    import torch

    from flashpoint.convert.export import ExportError
    from flashpoint.files import write_atomically
    from flashpoint.lab.runs.names import PIECES
    from flashpoint.models.pretrained import model_card

    folder = model.save_pretrained(out, card=model_card(model, _card_body(run.path, step)))
    if (run.path / PIECES).is_file():
        content = (run.path / PIECES).read_bytes()
        write_atomically(folder / PIECES, lambda handle: handle.write(content))
    kind = type(model)
    loaded = kind.from_pretrained(folder).state_dict()
    if not all(torch.equal(x, loaded[name]) for name, x in model.state_dict().items()):
        raise ExportError(
            f"{folder} does not give back the weights of {run.path}. Write it again."
        )
    _say_folder(run.path, step, folder)
    typer.echo(
        f'load it: {type(model).__name__}.from_pretrained("{folder}"); its weights are equal'
    )


def _write_language_folder(run: "Run", model: Any, step: int, out: Path) -> None:
    """The same of a model of transformers, whose attention its card puts back."""
    from flashpoint.lab.runs.names import PIECES
    from flashpoint.lab.training.adapting_recipe import HF_TOKENIZER
    from flashpoint.lab.training.language_folder import save_language_model

    files: dict[str, bytes] = {}
    if (run.path / PIECES).is_file():
        pieces = (run.path / PIECES).read_bytes()
        name = HF_TOKENIZER if pieces.lstrip()[:1] == b"{" else PIECES  # as transformers knows it
        files[name] = pieces
    body, config = _card_body(run.path, step), run.config.complete_model()
    folder = save_language_model(model, config, out, body=body, files=files)
    _say_folder(run.path, step, folder)
    typer.echo(f"load it as {folder / 'README.md'} says; its weights and results are equal")


def _card_body(run: Path, step: int) -> str:
    from flashpoint.lab.report.model_card import card_of_run
    from flashpoint.lab.runs.run_files import read_runs

    (files,) = read_runs([run])
    return card_of_run(files, step)


def _say_folder(run: Path, step: int, folder: Path) -> None:
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    names = ", ".join(sorted(file.name for file in folder.iterdir()))
    typer.echo(f"{folder}: the model of {run}, step {step}, {_size(size)} ({names})")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _MEGABYTE:.2f} MB"
