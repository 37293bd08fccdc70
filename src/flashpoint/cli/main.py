"""The ``flashpoint`` command: its verbs, and what happens to their errors."""

import sys
from typing import Annotated

import typer

from flashpoint import __version__
from flashpoint.cli.activations import activations
from flashpoint.cli.bench import bench
from flashpoint.cli.data import data
from flashpoint.cli.demo import demo
from flashpoint.cli.doctor import doctor
from flashpoint.cli.evaluate import evaluate
from flashpoint.cli.inspect import inspect
from flashpoint.cli.models import models
from flashpoint.cli.probe import probe
from flashpoint.cli.report import report
from flashpoint.cli.study import study
from flashpoint.cli.train import train
from flashpoint.cli.translate import translate
from flashpoint.cli.tune import tune
from flashpoint.errors import FlashpointError

app = typer.Typer(
    name="flashpoint",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (
    *(demo, train, evaluate, translate, probe, inspect, report, models),
    *(bench, activations, tune, doctor),
):
    app.command()(verb)
app.add_typer(data, name="data")
app.add_typer(study, name="study")


def _print_version(requested: bool) -> None:
    """Print the version and stop, before any verb is looked at."""
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def flashpoint(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Attention without softmax: train with it, look at it, time it."""


def main() -> None:
    """Run the command line; our own errors become one line, bugs keep their traceback."""
    try:
        app()
    except FlashpointError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
