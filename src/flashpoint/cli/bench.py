"""``flashpoint bench``: time, memory and error beside PyTorch's attention on this machine."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from flashpoint.bench.cases import Mode
    from flashpoint.bench.plan import Item, Options, Plan
    from flashpoint.bench.result import Result
    from flashpoint.bench.timing import Budget

STDOUT = Path("-")
ROUNDS, SECONDS = 20, 6.0


class ModeChoice(StrEnum):
    """What ``--mode`` takes."""

    FORWARD = "forward"
    TRAINING = "training"
    BOTH = "both"


Device: TypeAlias = Annotated[
    str | None, typer.Option(help="cpu; cuda comes with GPU kernels.", show_default="cpu")
]
SuiteName: TypeAlias = Annotated[
    str | None, typer.Option(help="Named set of shapes.", show_default="cpu")
]
Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="B,H,L,D", help="Measure this shape, not a suite; may be repeated."),
]
Dtypes: TypeAlias = Annotated[str, typer.Option(help="Any of bf16,fp16,fp32.")]
ModeOption: TypeAlias = Annotated[
    ModeChoice, typer.Option(help="training: forward and backward together.")
]
ActivationName: TypeAlias = Annotated[str, typer.Option(help="What stands in softmax's place.")]
Causal: TypeAlias = Annotated[bool, typer.Option("--causal", help="Hide later keys.")]
Threads: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Threads of torch.", show_default="torch's choice")
]
Rounds: TypeAlias = Annotated[
    int | None, typer.Option(min=2, help="Most rounds for a row.", show_default=str(ROUNDS))
]
Seconds: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0, help="No new round for a row after this time.", show_default=f"{SECONDS:g}"
    ),
]
NoMemory: TypeAlias = Annotated[bool, typer.Option("--no-memory", help="Leave memory out.")]
Quick: TypeAlias = Annotated[
    bool, typer.Option("--quick", help="Fewer rounds, and no length beyond 8192.")
]
JsonFile: TypeAlias = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result; - is stdout.")
]
Check: TypeAlias = Annotated[
    bool, typer.Option("--check", help="Exit with 1 if a limit of the suite is exceeded.")
]


def bench(
    device: Device = None,
    suite: SuiteName = None,
    shape: Shapes = None,
    dtype: Dtypes = "bf16,fp32",
    mode: ModeOption = ModeChoice.BOTH,
    activation: ActivationName = "relu",
    causal: Causal = False,
    threads: Threads = None,
    rounds: Rounds = None,
    seconds: Seconds = None,
    no_memory: NoMemory = False,
    quick: Quick = False,
    json_file: JsonFile = None,
    check: Check = False,
) -> None:
    """Measure Flashpoint beside PyTorch's softmax attention: time, memory and error."""
    import torch

    from flashpoint.bench.cases import parse_dtypes
    from flashpoint.bench.plan import Options, Plan
    from flashpoint.ops.spec import find_activation

    options = Options(
        activation=find_activation(activation).name, causal=causal, device=_find_device(device)
    )
    modes: tuple[Mode, ...] = ("forward", "training") if mode == "both" else (mode.value,)
    plan = Plan(
        items=_select_items(suite, shape or [], quick, parse_dtypes(dtype), modes, options),
        budget=_find_budget(rounds, seconds, quick),
        has_memory=not no_memory,
        threads=threads or torch.get_num_threads(),
    )
    _refuse_early(plan, json_file, check)
    result = _measure(plan)
    _publish(result, json_file)
    if check:
        _exit_if_broken(result)


def _find_device(name: str | None) -> str:
    """The device to measure on; only the CPU has suites so far."""
    from flashpoint.bench.cases import choose

    device = name or "cpu"
    if choose(device, ("cpu", "cuda"), "device") == "cuda":
        raise UnsupportedError("GPU suites come with the GPU kernels; for now, pass --device cpu.")
    return device


def _find_budget(rounds: int | None, seconds: float | None, quick: bool) -> "Budget":
    """What was asked for, and the usual for the rest."""
    from flashpoint.bench.timing import Budget

    usual = Budget(rounds=5, seconds=1.0) if quick else Budget(rounds=ROUNDS, seconds=SECONDS)
    return Budget(
        rounds=usual.rounds if rounds is None else rounds,
        seconds=usual.seconds if seconds is None else seconds,
    )


def _select_items(
    suite: str | None,
    shapes: list[str],
    quick: bool,
    dtypes: tuple[str, ...],
    modes: "tuple[Mode, ...]",
    options: "Options",
) -> "tuple[Item, ...]":
    """The items of a suite with its overhead rows, or of the shapes given."""
    from flashpoint.bench.cases import choose, parse_shape
    from flashpoint.bench.plan import make_items, make_overhead_items
    from flashpoint.bench.suites import LONG, SUITES, stated_entry

    if suite is not None and shapes:
        raise InputError("--suite and --shape exclude each other. Pass one of them.")
    chosen = SUITES[choose(suite or "cpu", SUITES, "suite")]
    if shapes:
        entries = [stated_entry(chosen, parse_shape(text)) for text in shapes]
        return make_items(entries, dtypes, modes, options)
    entries = [entry for entry in chosen.entries if not (quick and entry.shape.length > LONG)]
    overhead = make_overhead_items(chosen.overhead, options)
    return make_items(entries, dtypes, modes, options) + overhead


def _refuse_early(plan: "Plan", json_file: Path | None, check: bool) -> None:
    """Refuse a check that could not fail and a result that could not be written."""
    if check and all(item.limits.ratio is None for item in plan.items):
        raise InputError(
            "--check has nothing to check: limits are stated for the shapes of a suite, with relu "
            "and without --causal. Leave out --check or --shape, --activation and --causal."
        )
    if json_file is not None and json_file != STDOUT:
        _require_writable(json_file)


def _require_writable(file: Path) -> None:
    """Open the file for writing, and leave no trace if it was not there."""
    existed = file.exists()
    try:
        with file.open("a"):
            pass
    except OSError as error:
        raise InputError(f"cannot write --json {file}: {error.strerror}.") from error
    if not existed:
        file.unlink()


def _measure(plan: "Plan") -> "Result":
    """Run the plan and show on stderr what it is doing."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from flashpoint.bench.runner import measure

    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(plan.items))
        return measure(
            plan, lambda done, text: progress.update(task, completed=done, description=text)
        )


def _publish(result: "Result", json_file: Path | None) -> None:
    """Show the table and write the file; with JSON on stdout the table goes to stderr."""
    from rich.console import Console

    from flashpoint.bench.table import render

    Console(stderr=json_file == STDOUT).print(render(result))
    if json_file == STDOUT:
        sys.stdout.write(result.to_json())
    elif json_file is not None:
        json_file.write_text(result.to_json())


def _exit_if_broken(result: "Result") -> None:
    """Name every limit that is exceeded on stderr and exit with 1 if there is one."""
    from flashpoint.bench.check import broken_promises

    broken = [
        f"{row.case}: {clause}" for row in result.rows for clause in broken_promises(row).values()
    ]
    for line in broken:
        typer.secho(line, fg=typer.colors.RED, err=True)
    if broken:
        raise typer.Exit(1)
