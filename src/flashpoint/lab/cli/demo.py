"""``flashpoint demo``: two twins, softmax and relu, trained side by side on this machine."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.cli.paths import path_of
from flashpoint.lab.runs import names

if TYPE_CHECKING:
    from rich.console import Console

    from flashpoint.lab.cli.demo_twins import Twin
    from flashpoint.lab.cli.demo_view import Result

NAMES = ("relu", "softmax")
TITLE = "Attention with and without softmax"
CONFIG = Path("configs", "digits.yaml")


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the runs.", parser=path_of)
    ] = Path("runs", "demo"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove the runs of an earlier demo first.")
    ] = False,
) -> None:
    """Train two small ViTs on digits, relu and softmax, and show how they compare: a minute.

    Interrupted, the same command goes on; finished, it shows the result again.
    """
    from rich.console import Console

    from flashpoint.lab.cli.demo_twins import STOPPED, Stopped, Twin
    from flashpoint.lab.cli.demo_view import HEADER, draw_next, draw_results

    config = find_config()
    twins = [Twin(name, out / name) for name in NAMES]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {out} cannot be made: {error.strerror}. Pass a folder that can be written."
        ) from error
    if fresh:
        _remove(out, twins)
    console = Console()
    console.print(HEADER)
    try:
        _train(twins, config, console)
    except Stopped as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(STOPPED) from stop
    with console.status("Looking at their attention"):
        for twin in twins:
            if not (twin.folder / names.ATTENTION / names.MAPS).is_file():
                _look_at(twin)
        _write_report(out, twins)
    console.print(draw_results(_gather(twins)))
    console.print(draw_next(out, [twin.folder for twin in twins], config), soft_wrap=True)


def find_config() -> Path:
    """The config of the digits: of the checkout, or of the installed package."""
    package = Path(__file__).resolve().parents[2]
    for file in (package.parents[1] / CONFIG, package / CONFIG):
        if file.is_file():
            return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    raise UnsupportedError(f"the demo needs {CONFIG}, which is not here. Run it in a checkout.")


def _remove(out: Path, twins: "list[Twin]") -> None:
    """Remove what an earlier demo left, and nothing else."""
    for twin in twins:
        if (twin.folder / names.CONFIG).is_file():
            shutil.rmtree(twin.folder)
        twin.log.unlink(missing_ok=True)
    (out / names.PAGE).unlink(missing_ok=True)


def _train(twins: "list[Twin]", config: Path, console: "Console") -> None:
    """Train what is not finished, or say that everything is."""
    from flashpoint.lab.cli.demo_twins import train_twins
    from flashpoint.lab.cli.demo_view import Progress

    waiting = [twin for twin in twins if not twin.is_finished]
    if not waiting:
        where = twins[0].folder.parent
        console.out(
            f"{where} holds both runs already. To train them again: --fresh\n", highlight=False
        )
        return
    for twin in waiting:
        if twin.look().step:
            console.out(f"{twin.folder} goes on from its last checkpoint.", highlight=False)
    with Progress(console) as progress:
        train_twins(waiting, config, progress.show)


def _look_at(twin: "Twin") -> None:
    """Draw the attention of a trained twin and count its zeros."""
    from flashpoint.lab.cli.run_arguments import open_classifier
    from flashpoint.lab.evaluation.run_inspection import inspect_model

    run, model, step = open_classifier(twin.folder, "last", "cpu")
    inspect_model(model, run.config.data, twin.folder / names.ATTENTION, step=step)


def _gather(twins: "list[Twin]") -> "list[Result]":
    """The numbers of the table, from the runs' files."""
    from statistics import fmean

    from flashpoint.lab.cli.demo_view import Result
    from flashpoint.lab.runs.run_files import read_runs

    results: list[Result] = []
    for run in read_runs([twin.folder for twin in twins]):
        assert run.statistics is not None
        results.append(
            Result(
                name=run.name,
                top1=run.record["validation"]["top1"],
                loss=run.record["validation"]["loss"],
                seconds=run.record["seconds"],
                images_per_s=run.record["samples_per_s"],
                zeros=fmean(head["sparsity"] for head in run.statistics["heads"]),
            )
        )
    return results


def _write_report(out: Path, twins: "list[Twin]") -> None:
    """The page of both runs."""
    from flashpoint.lab.report.page import write_page
    from flashpoint.lab.report.run_report import report_runs

    page = report_runs([twin.folder for twin in twins], title=TITLE)
    write_page(page, out / names.PAGE)
