"""``flashpoint bench``: time, memory and error beside PyTorch's attention on this machine."""

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import STDOUT, JsonFile, path_of, require_writable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashpoint.lab.bench.entry import Limits
    from flashpoint.lab.bench.plan import Item, Plan, Request
    from flashpoint.lab.bench.result import Result

ROUNDS = {"cpu": 20, "cuda": 50}
SECONDS = {"cpu": 6.0, "cuda": 1.5}
QUICK_ROUNDS, QUICK_SECONDS = 5, 1.0
DTYPES = {"cpu": "bf16,fp32", "cuda": "bf16"}
LOADER = "loader"


class ModeChoice(StrEnum):
    """What ``--mode`` takes."""

    FORWARD = "forward"
    BACKWARD = "backward"
    TRAINING = "training"
    BOTH = "both"


Device: TypeAlias = Annotated[
    str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is one")
]
SuiteName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="cpu; on cuda vit, long, decode, sums, or all of these; corners: other options, "
        "head dims and dtypes; vit-model: training steps of whole ViTs; loader: images read from "
        "shards.",
        show_default="cpu, or all",
    ),
]
Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="B,H,L,D",
        help="Measure this shape, not a suite; may be repeated. H/K: K heads of k and v; "
        "Q:L: Q queries.",
    ),
]
Dtypes: TypeAlias = Annotated[
    str | None, typer.Option(help="Any of bf16,fp16,fp32.", show_default="bf16,fp32; on cuda bf16")
]
ModeOption: TypeAlias = Annotated[
    ModeChoice,
    typer.Option(help="backward: alone; training: with forward; both: what the suite has."),
]
ActivationName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="What stands in softmax's place, relu4/sum for relu4 divided by its sums.",
        show_default="the suite's, relu",
    ),
]
Causal: TypeAlias = Annotated[bool, typer.Option("--causal", help="Hide later keys, everywhere.")]
Providers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Whom to measure besides flashpoint: all, or any of sdpa, sdpa_cudnn, sdpa_flash, "
        "sdpa_efficient, sdpa_math, fa4, flex_softmax, flex_log, plain, plain_compiled.",
        show_default="sdpa and plain; on cuda sdpa_cudnn and sdpa_flash",
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Threads of torch.", show_default="torch's choice"),
]
Rounds: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=2, max=1_000_000, help="Most rounds for a row.", show_default="20; on cuda 50"
    ),
]
Seconds: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=86_400,
        help="No new round for a row after this time.",
        show_default="6; on cuda 1.5",
    ),
]
Only: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help='Measure cases with this in their name alone, as "gelu" or "128  bf16 silu".',
        show_default="all",
    ),
]
NoMemory: TypeAlias = Annotated[bool, typer.Option("--no-memory", help="Leave memory out.")]
Quick: TypeAlias = Annotated[
    bool, typer.Option("--quick", help="Fewer rounds, and on the CPU no length beyond 8192.")
]
PlotFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw the rates: png, svg or pdf.", parser=path_of
    ),
]
FromFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Show this result of --json, measure nothing.",
        parser=path_of,
    ),
]
Check: TypeAlias = Annotated[
    bool, typer.Option("--check", help="Exit with 1 if a limit of the suite is missed.")
]


def bench(
    device: Device = None,
    suite: SuiteName = None,
    shape: Shapes = None,
    dtype: Dtypes = None,
    mode: ModeOption = ModeChoice.BOTH,
    activation: ActivationName = None,
    causal: Causal = False,
    providers: Providers = None,
    only: Only = "",
    threads: Threads = None,
    rounds: Rounds = None,
    seconds: Seconds = None,
    no_memory: NoMemory = False,
    quick: Quick = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    from_file: FromFile = None,
    check: Check = False,
) -> None:
    """Measure Flashpoint beside PyTorch's softmax attention: time, memory and error."""
    _refuse_files(json_file, plot_file)
    if from_file is not None:
        from flashpoint.lab.bench.result_file import read

        _refuse_measuring(
            **{"device": device, "suite": suite, "shape": shape, "dtype": dtype},
            **{"mode": mode is not ModeChoice.BOTH, "activation": activation, "causal": causal},
            **{"providers": providers, "threads": threads, "rounds": rounds, "seconds": seconds},
            **{"no-memory": no_memory, "quick": quick, "only": only},
        )
        result = read(from_file)
        _refuse_idle_check(check, [row.limits for row in result.rows], bool(result.models))
    elif suite == LOADER:
        from flashpoint.lab.cli.bench_loader import bench_loader

        unused: dict[str, object] = {"shape": shape, "dtype": dtype, "activation": activation}
        unused |= {"mode": mode is not ModeChoice.BOTH, "causal": causal, "providers": providers}
        unused |= {"threads": threads, "rounds": rounds, "seconds": seconds, "plot": plot_file}
        found = _find_device(device)
        bench_loader(found, is_quick=quick, json_file=json_file, check=check, unused=unused)
        return
    else:
        request = _read_request(
            _find_device(device),
            suite=suite,
            shapes=shape or [],
            dtypes=dtype,
            mode=mode,
            activation=activation,
            providers=providers,
        )
        request = replace(request, causal=causal, only=only, is_quick=quick)
        plan = _make_plan(request, rounds, seconds, threads, has_memory=not no_memory)
        _refuse_idle_check(check, [item.limits for item in plan.items], bool(plan.models))
        result = _measure(plan)
    _publish(result, json_file, plot_file)
    if check:
        _exit_if_broken(result)


def _find_device(name: str | None) -> str:
    """The device asked for if it is here, else the GPU if there is one."""
    from flashpoint.lab.bench.cases import choose
    from flashpoint.lab.bench.device import DEVICES, default_device, require

    device = choose(name, DEVICES, "device") if name else default_device()
    require(device)
    return device


def _read_request(
    device: str,
    *,
    suite: str | None,
    shapes: list[str],
    dtypes: str | None,
    mode: ModeChoice,
    activation: str | None,
    providers: str | None,
) -> "Request":
    """What the words of the command line mean."""
    from flashpoint.lab.bench.cases import parse_dtypes, parse_names, parse_shape
    from flashpoint.lab.bench.plan import Request
    from flashpoint.lab.bench.providers.registry import PROVIDERS
    from flashpoint.layers.spec import AttentionSpec
    from flashpoint.ops.activation import find_activation
    from flashpoint.words import fields_of

    if activation is not None:
        find_activation(fields_of(activation)["activation"])
        activation = AttentionSpec.parse(activation).word
    names = ",".join(PROVIDERS) if providers == "all" else providers
    return Request(
        device=device,
        suite=suite,
        shapes=tuple(parse_shape(text) for text in shapes),
        dtypes=parse_dtypes(dtypes or DTYPES[device]),
        mode=None if mode is ModeChoice.BOTH else mode.value,
        activation=activation,
        providers=parse_names(names, PROVIDERS, "provider") if names else None,
    )


def _make_plan(
    request: "Request",
    rounds: int | None,
    seconds: float | None,
    threads: int | None,
    *,
    has_memory: bool,
) -> "Plan":
    """What was asked for, and the usual for the rest."""
    import torch

    from flashpoint.lab.bench.plan import Plan, select_items, select_models
    from flashpoint.lab.bench.providers.registry import USUAL
    from flashpoint.lab.bench.timing import Budget

    device, quick = request.device, request.is_quick
    usual_rounds = QUICK_ROUNDS if quick else ROUNDS[device]
    usual_seconds = QUICK_SECONDS if quick else SECONDS[device]
    budget = Budget(
        rounds=usual_rounds if rounds is None else rounds,
        seconds=usual_seconds if seconds is None else seconds,
    )
    items = select_items(request, USUAL[device])
    _refuse_huge(items, device)
    return Plan(
        items=items,
        models=select_models(request),
        suite=request.suite,
        budget=budget,
        has_memory=has_memory,
        threads=threads or torch.get_num_threads(),
    )


def _refuse_huge(items: "Sequence[Item]", device: str) -> None:
    """Refuse a shape whose tensors alone are more than there is memory."""
    import torch

    from flashpoint.lab.training.available_memory import available_memory

    free = available_memory(torch.device(device))
    for case in (item.case for item in items):
        if free is not None and case.bytes_moved > free:
            raise InputError(
                f"shape {case.shape} in {case.dtype} needs {case.bytes_moved / 1e9:,.0f} GB for "
                f"its tensors alone, {device} has {free / 1e9:,.0f} GB free. Take a smaller one."
            )


def _refuse_files(json_file: Path | None, plot_file: Path | None) -> None:
    """Refuse files that could not be written, before anything is measured."""
    require_writable(json_file, "--json")
    if plot_file is not None:
        from flashpoint.lab.bench.plot import require_drawable

        require_drawable(plot_file)
        require_writable(plot_file, "--plot")


def _refuse_measuring(**options: object) -> None:
    """With --from nothing is measured: refuse what says otherwise."""
    for name, value in options.items():
        if value:
            raise InputError(
                f"--from shows a stored result and measures nothing, but --{name} is given. "
                "Leave out one of them."
            )


def _refuse_idle_check(check: bool, limits: "list[Limits]", has_models: bool) -> None:
    """Refuse a check that could not fail."""
    if check and not has_models and all(stated.is_empty for stated in limits):
        raise InputError(
            "--check has nothing to check: limits are stated for cases of the suites cpu, vit, "
            "long, decode, corners and vit-model. Leave out --check, or what makes them other "
            "cases (--shape, --dtype, --activation, --causal), or measure a file without limits "
            "again."
        )


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

    from flashpoint.lab.bench.runner import measure

    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(plan.items) + len(plan.models))
        return measure(
            plan, lambda done, text: progress.update(task, completed=done, description=text)
        )


def _publish(result: "Result", json_file: Path | None, plot_file: Path | None) -> None:
    """Show the table and write the files; with JSON on stdout the table goes to stderr."""
    from rich.console import Console

    from flashpoint.lab.bench.result_file import to_json
    from flashpoint.lab.cli.bench_view import render

    Console(stderr=json_file == STDOUT).print(render(result))
    if json_file == STDOUT:
        sys.stdout.write(to_json(result))
    elif json_file is not None:
        json_file.write_text(to_json(result))
    if plot_file is not None:
        from flashpoint.lab.bench.plot import draw

        draw(result, plot_file)


def _exit_if_broken(result: "Result") -> None:
    """Name every limit that is missed on stderr and exit with 1 if there is one."""
    from flashpoint.lab.bench.check import broken_promises, slow_model

    broken = [
        f"{row.case}: {clause}" for row in result.rows for clause in broken_promises(row).values()
    ]
    clauses = ((row.case, slow_model(row)) for row in result.models)
    broken += [f"{case}: {clause}" for case, clause in clauses if clause]
    for line in broken:
        typer.secho(line, fg=typer.colors.RED, err=True)
    if broken:
        raise typer.Exit(1)
