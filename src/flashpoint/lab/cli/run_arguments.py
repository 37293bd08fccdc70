"""Words that several verbs take: paths, a run, its checkpoint and data, files to write."""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from flashpoint.errors import InputError, describe, hint
from flashpoint.files import json_text


def path_of(word: str | Path) -> Path:
    """What a word names; an empty one, which would be the current folder, is refused.

    A default comes as the path it is.

    Example:
        >>> path_of("runs/demo").name
        'demo'
    """
    if isinstance(word, str) and not word.strip():
        raise typer.BadParameter("it is empty and names no file or folder")
    return Path(word)


if TYPE_CHECKING:
    from torch import nn

    from flashpoint.lab.training.run_folder import Run
    from flashpoint.models.vit import ViT

LANGUAGE_TASKS = ("language", "adapt_language")
STDOUT = Path("-")
MAX_DIGITS = 18
"""Of the number of a step."""

SECONDS_A_LINE = 10.0
"""Between two lines of progress where no bar can be drawn."""

IMAGES_AT_MOST = 65_536
"""In a batch: more than any GPU wants at a time."""


RunFolder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run's folder.", parser=path_of)
]
Fresh: TypeAlias = Annotated[
    bool, typer.Option("--fresh", help="Remove what an earlier run left in --out first.")
]
Checkpoint: TypeAlias = Annotated[
    str, typer.Option(metavar="best|last|N", help="Which: best by validation, last, or a step.")
]
Device: TypeAlias = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")]
ClassList: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--classes",
        metavar="FILE",
        parser=path_of,
        help="The data's classes, one a line in the order of their labels, if the data have them "
        "in other words or splits have them in another order.",
    ),
]
BatchSize: TypeAlias = Annotated[
    int, typer.Option(min=1, max=IMAGES_AT_MOST, help="Images at a time.")
]
JsonFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result; - is stdout.", parser=path_of),
]
Progress: TypeAlias = Callable[[int, int], None]


def open_with_model(folder: Path, checkpoint: str, device: str) -> "tuple[Run, nn.Module, int]":
    """A run and its model at a checkpoint, on a device, and the checkpoint's step."""
    from flashpoint.lab.training.run_folder import open_run

    where = _find_device(device)
    run = open_run(folder)
    step = run.find_step(parse_checkpoint(checkpoint))
    return run, run.load_model(step).to(where), step


def open_classifier(folder: Path, checkpoint: str, device: str) -> "tuple[Run, ViT, int]":
    """The same of a run on images."""
    from flashpoint.models.vit import ViT

    run, model, step = open_with_model(folder, checkpoint, device)
    if not isinstance(model, ViT):
        raise InputError(
            f"{folder} trained {type(model).__name__}, which classifies no images. For text there "
            "is `flashpoint evaluate`, for translators `flashpoint translate` too."
        )
    return run, model, step


def parse_checkpoint(text: str) -> Literal["best", "last"] | int:
    """What --checkpoint says."""
    if text == "best" or text == "last":
        return text
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise InputError(
            f"--checkpoint {describe(text)} must be best, last or a step. "
            f"{hint(text, ('best', 'last'))}".rstrip()
        )
    return int(text)


def _find_device(name: str) -> Any:
    from flashpoint.lab.training.ranks import choose_device

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {name!r} must be auto, cpu or cuda.")
    return choose_device(name)


@contextmanager
def counting(label: str) -> Generator[Progress]:
    """A bar on stderr that counts what is done; a line now and then if stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _in_lines(label)
        return
    columns = (TextColumn(label), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _in_lines(label: str) -> Progress:
    last = time.monotonic()

    def on_count(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() >= last + SECONDS_A_LINE:
            last = time.monotonic()
            typer.echo(f"{label}: {done} of {total}", err=True)

    return on_count


def warn(line: str) -> None:
    """A line that a result must not be read without."""
    typer.secho(line, fg=typer.colors.YELLOW, err=True)


def warn_of_broken(names: Sequence[str]) -> None:
    """Say what of the data could not be read, if something could not."""
    from flashpoint.lab.evaluation.class_matching import some

    if names:
        warn(f"{len(names)} images or shards cannot be read: {some(names)}.")


def require_writable(file: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    if file is None or file == STDOUT:
        return
    existed = file.exists()
    try:
        with file.open("a"):
            pass
    except OSError as error:
        raise InputError(f"cannot write {option} {file}: {error.strerror}.") from error
    if not existed:
        file.unlink()


def write_json(content: dict[str, Any], file: Path) -> None:
    """Plain data as JSON, to a file or to stdout."""
    text = json_text(content, indent=1) + "\n"
    if file == STDOUT:
        sys.stdout.write(text)
    else:
        file.write_text(text)
