"""``flashpoint doctor --check``: random calls on this machine, judged against float64."""

import shlex
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from flashpoint.errors import InputError, UnsupportedError, check_choice
from flashpoint.lab.cli.run_arguments import STDOUT, write_json

if TYPE_CHECKING:
    from flashpoint.lab.selfcheck.draws import Scope
    from flashpoint.lab.selfcheck.session import Request, Tally

SECONDS = 60.0
MOST_LINES = 10
"""Of misses; the record has them all."""
FEW = 50
"""Cases below which a time limit was too short for a verdict about the machine."""
MOST_CASES = 1_000_000_000
MOST_JOBS = 64
MOST_SECONDS = 30 * 86_400

Check: TypeAlias = Annotated[
    bool,
    typer.Option("--check", help="Run random calls and judge them against float64 instead."),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, max=2**63 - 1, help="Of the random cases.", show_default="0"),
]
Cases: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, max=MOST_CASES, help="How many.", show_default="as many as the time allows"
    ),
]
First: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_CASES, help="Number of the first case.", show_default="0"),
]
OneCase: TypeAlias = Annotated[
    int | None,
    typer.Option("--case", min=0, max=2 * MOST_CASES, metavar="N", help="Run case N alone."),
]
TimeLimit: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MOST_SECONDS,
        metavar="SECONDS",
        help="Begin no case after this time.",
        show_default="60; none with --cases or --case",
    ),
]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is one")
]
ImplName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--impl", help="reference, cpu or triton.", show_default="all that serve the device"
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_JOBS,
        help="Processes; on a GPU kernels then compile side by side.",
        show_default="1",
    ),
]


def refuse_alone(**options: object) -> None:
    """Refuse options of the check without it."""
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for the check. Pass --check too, or leave it out.")


def check_machine(
    *,
    seed: int | None,
    cases: int | None,
    first: int | None,
    case: int | None,
    time_limit: float | None,
    device: str | None,
    impl: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Run cases, show the verdict; exit with 1 if one missed its budget or none was judged."""
    from flashpoint.lab.selfcheck.session import Request

    if case is not None and (cases is not None or first is not None):
        raise InputError("--case runs one case alone. Leave out --cases and --first.")
    if time_limit is None and case is None and cases is None:
        time_limit = SECONDS
    request = Request(
        scope=_find_scope(device, impl),
        seed=seed or 0,
        first=case if case is not None else first or 0,
        cases=1 if case is not None else cases,
        time_limit=time_limit,
        jobs=jobs or 1,
    )
    repeat = _repeating(request)
    tally = _run(request)
    _show(request, tally, repeat, is_alone=case is not None, to_stderr=as_json)
    if as_json:
        write_json(_record(request, tally, repeat), STDOUT)
    if tally.misses or not tally.judged:
        raise typer.Exit(1)


def _find_scope(device: str | None, impl: str | None) -> "Scope":
    """Where cases run, and by whom; what is not here is refused."""
    from flashpoint.lab.bench.device import DEVICES, default_device, require
    from flashpoint.lab.selfcheck.draws import Scope
    from flashpoint.ops.implementations import survey

    device = device or default_device()
    check_choice("device", device, DEVICES)
    require(device)
    missing = {name: detail for name, available, detail in survey() if not available}
    serving = ("triton", "reference") if device == "cuda" else ("cpu", "triton", "reference")
    if impl is None:
        return Scope(device, tuple(name for name in serving if name not in missing))
    check_choice("impl", impl, ("reference", "cpu", "triton"))
    if impl not in serving:
        raise UnsupportedError(f"impl {impl!r} does not serve {device}. Pass --device cpu.")
    if impl in missing:
        raise UnsupportedError(f"impl {impl!r} cannot be checked here: {missing[impl]}.")
    return Scope(device, (impl,))


def _repeating(request: "Request") -> Callable[[int], str]:
    """The command that runs a case again, by its number, wherever its implementation works."""
    from flashpoint.lab.selfcheck.draws import draw_case
    from flashpoint.ops.implementations import INTERPRETED

    start = "TRITON_INTERPRET=1 " if INTERPRETED else ""
    words = ("flashpoint", "doctor", "--check", "--seed", str(request.seed))

    def command(index: int) -> str:
        impl = draw_case(request.seed, index, request.scope).impl
        where = ("--device", request.scope.device, "--impl", impl)
        return start + shlex.join([*words, *where, "--case", str(index)])

    return command


def _run(request: "Request") -> "Tally":
    """Run the cases; on a terminal a bar on stderr counts them."""
    from flashpoint.lab.selfcheck.session import check

    with _bar(request) as show:
        return check(request, show)


@contextmanager
def _bar(request: "Request") -> "Generator[Callable[[Tally], None]]":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=request.cases or request.time_limit)

        def show(tally: "Tally") -> None:
            done = tally.judged + tally.refused
            worst = f", worst {tally.worst.ratio:.2f} of the budget" if tally.worst else ""
            missed = f", {len(tally.misses)} missed" if tally.misses else ""
            progress.update(
                task,
                completed=done if request.cases else tally.seconds,
                description=f"{done} cases{worst}{missed}",
            )

        yield show


def _show(
    request: "Request",
    tally: "Tally",
    repeat: Callable[[int], str],
    *,
    is_alone: bool,
    to_stderr: bool,
) -> None:
    """A line for each miss, then the verdict; of a case that ran alone, what it is."""
    if is_alone:
        from flashpoint.lab.selfcheck.draws import draw_case

        line = draw_case(request.seed, request.first, request.scope)
        typer.echo(str(line), err=to_stderr)
    for miss in tally.misses[:MOST_LINES]:
        said = miss.detail if is_alone else f"{miss.line}: {miss.detail}"
        typer.secho(f"missed: {said}", fg=typer.colors.RED, err=True)
    if len(tally.misses) > MOST_LINES:
        more = len(tally.misses) - MOST_LINES
        typer.secho(f"... and {more} more; --json has all", fg=typer.colors.RED, err=True)
    typer.echo(_verdict(request, tally, repeat), err=to_stderr)


def _verdict(request: "Request", tally: "Tally", repeat: Callable[[int], str]) -> str:
    """How it went, in one line."""
    where = f"on {request.scope.device} ({', '.join(request.scope.impls)})"
    more = "more " if tally.judged else ""
    extra = f", {tally.refused} {more}refused" if tally.refused else ""
    extra += f", {tally.cut}" if tally.cut else ""
    if tally.worst is None:
        return f"No case was judged {where}{extra}."
    worst = tally.worst
    if tally.misses:
        found = f"{len(tally.misses)} of {_count(tally.judged)} {where}{extra} missed the error "
        found += f"budget; worst {worst.ratio:.3g} times it (case {worst.index})"
    else:
        found = f"{_count(tally.judged)} {where}{extra}: all within the error budget; worst "
        found += f"{worst.ratio:.2f} of it (case {worst.index})"
        if request.cases is None and tally.judged < FEW:
            found += f". So few say little: give it a --time-limit for {FEW} or more"
    return f"{found}. Repeat it: {repeat(worst.index)}"


def _count(cases: int) -> str:
    return f"{cases} case" if cases == 1 else f"{cases} cases"


def _record(request: "Request", tally: "Tally", repeat: Callable[[int], str]) -> dict[str, Any]:
    """All of it as plain data, with where it ran."""
    from flashpoint.lab.bench.environment import describe

    return {
        "environment": asdict(describe(request.scope.device)),
        "device": request.scope.device,
        "impls": list(request.scope.impls),
        "seed": request.seed,
        "first": request.first,
        "cases": request.cases,
        "time_limit": request.time_limit,
        "jobs": request.jobs,
        "done": tally.ranges(),
        "judged": tally.judged,
        "refused": tally.refused,
        "seconds": round(tally.seconds, 1),
        "cut": tally.cut,
        "worst": asdict(tally.worst) if tally.worst else None,
        "repeat": repeat(tally.worst.index) if tally.worst else None,
        "misses": [asdict(miss) for miss in tally.misses],
    }
