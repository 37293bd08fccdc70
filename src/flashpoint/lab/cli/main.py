"""The ``flashpoint`` command: its verbs, and what happens to their errors."""

import sys
from inspect import cleandoc
from typing import Annotated, Any, NoReturn

import typer

from flashpoint import __version__
from flashpoint.errors import FlashpointError
from flashpoint.lab.cli.activations import activations
from flashpoint.lab.cli.adapt import adapt
from flashpoint.lab.cli.bench import bench
from flashpoint.lab.cli.data import data
from flashpoint.lab.cli.demo import demo
from flashpoint.lab.cli.doctor import doctor
from flashpoint.lab.cli.evaluate import evaluate
from flashpoint.lab.cli.export import export
from flashpoint.lab.cli.inspect import inspect
from flashpoint.lab.cli.models import models
from flashpoint.lab.cli.page import page
from flashpoint.lab.cli.plan import plan
from flashpoint.lab.cli.probe import probe
from flashpoint.lab.cli.report import report
from flashpoint.lab.cli.study import study
from flashpoint.lab.cli.train import train
from flashpoint.lab.cli.translate import translate
from flashpoint.lab.cli.tune import tune

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises where it cannot read the command line; it has no public name."""

app = typer.Typer(
    name="flashpoint",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (
    *(demo, train, adapt, evaluate, translate, probe, inspect, export, page, report, models),
    *(bench, activations, tune, plan, doctor),
):
    app.command()(verb)
app.add_typer(data, name="data")
app.add_typer(study, name="study")


def _flow(text: str) -> str:
    """A docstring whose paragraphs break where the terminal ends; those behind a \\b stay.

    Example:
        >>> _flow("One\\nline.\\n\\n\\b\\na list\\nof lines")
        'One line.\\n\\na list\\nof lines'
    """
    parts = cleandoc(text).split("\n\n")
    kept = "\b\n"
    return "\n\n".join(
        part.removeprefix(kept) if part.startswith(kept) else " ".join(part.split())
        for part in parts
    )


def _flow_help(group: typer.Typer) -> None:
    """Let the help of a group, of its verbs and of the groups in it flow; what has none stays."""
    if isinstance(group.info.help, str):
        group.info.help = _flow(group.info.help)
    callback = group.registered_callback
    for one in (*group.registered_commands, *([callback] if callback else [])):
        if told := getattr(one.callback, "__doc__", None):
            one.help = _flow(told)
    for inner in group.registered_groups:
        if inner.typer_instance:
            _flow_help(inner.typer_instance)


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


_flow_help(app)


def main() -> None:
    """Run the command line; errors become one line, bugs keep their traceback."""
    try:
        sys.exit(app(standalone_mode=False))
    except FlashpointError as error:
        _refuse(str(error))
    except UsageError as error:
        if said := _describe(error):  # without arguments the help is printed, and nothing is said
            _refuse(said)
        sys.exit(2)
    except typer.Abort:  # a question that got no answer
        typer.secho("aborted.", fg=typer.colors.RED, err=True)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = " ".join(str(error).partition("\n")[0].split())
        _refuse(f"out of memory: {reason} Take smaller batches, shapes or models.")


def _refuse(reason: str) -> NoReturn:
    typer.secho(f"error: {reason}", fg=typer.colors.RED, err=True)
    sys.exit(2)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, PyTorch's CUDA allocator or its CPU allocator found no memory."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool({"MemoryError", "OutOfMemoryError"} & kinds) or "CPUAllocator" in str(error)


def _describe(error: Any) -> str:
    """What is wrong with the command line, and which help says how it should be; may be empty."""
    said = " ".join(error.format_message().replace("Value error, ", "").split())
    if not said:
        return ""
    called = error.ctx.command_path if error.ctx else _called()
    stop = "" if said.endswith((".", "?")) else "."
    return f"{said[0].lower()}{said[1:]}{stop} See: {called} --help"


def _called() -> str:
    """The verb that the command line names, with its groups: some errors do not know theirs."""
    command, words = typer.main.get_command(app), [str(app.info.name)]
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        words.append(word)
    return " ".join(words)
