"""``flashpoint study``: claims of the papers and open questions, answered by runs of your own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.errors import FlashpointError, InputError, hint
from flashpoint.lab.cli.run_arguments import path_of
from flashpoint.lab.cli.study_report import OUT, report
from flashpoint.lab.cli.train import STOPPED
from flashpoint.lab.runs.names import FAILURE, TRIALS

if TYPE_CHECKING:
    from flashpoint.lab.study.plan import Settings, Study, Trial
    from flashpoint.lab.study.store import StoredStudy

ALL = "all"
MOST_JOBS = 1000
ON_A_GPU = 4
"""Trials at a time where there is a GPU and --jobs says nothing."""


class ScaleName(StrEnum):
    """What ``--scale`` takes."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


Scale: TypeAlias = Annotated[
    ScaleName,
    typer.Option(
        help="smoke: a minute on two cores, to see that it works. small: minutes on a GPU. "
        "paper: the paper's own setting, on your data."
    ),
]
Seeds: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Runs that differ in their seed only.", show_default="3; smoke: 1"),
]
Images: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="What image studies train on, as `flashpoint train --data` takes it.",
        show_default="cifar10:data/cifar10; smoke: digits; paper: none",
    ),
]
Documents: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="What text studies train on: a folder of `flashpoint data prepare en-de-docs`.",
        show_default="data/en-de-docs; smoke: made up; paper: none",
    ),
]
Passages: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="What studies of language models train on: a folder of .txt or .jsonl files, as "
        "`flashpoint data prepare linux-doc` makes one.",
        show_default="data/linux-doc; smoke: made up; paper: none",
    ),
]

study = typer.Typer(
    no_args_is_help=True,
    help="Run the papers' claims, and open questions, on your data; see what holds.",
)


study.command()(report)


@study.command("list")
def list_studies() -> None:
    """List the studies: what each asks, where the claim stands, how many runs it takes."""
    from rich.console import Console

    from flashpoint.lab.cli.study_view import draw_studies
    from flashpoint.lab.study.plan import settings_of

    entries, scales = list(_studies().values()), list(ScaleName)
    counts = [[len(entry.plan(settings_of(scale.value))) for scale in scales] for entry in entries]
    Console().print(draw_studies(entries, scales, counts))


@study.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `study list` has it.")],
    scale: Scale = ScaleName.SMALL,
    seeds: Seeds = None,
    images: Images = None,
    documents: Documents = None,
    passages: Passages = None,
) -> None:
    """Show a study: its claim, its axes, its trials, the data it needs and what it costs."""
    from rich.console import Console

    from flashpoint.lab.cli.study_view import draw_plan
    from flashpoint.lab.study.plan import settings_of

    if name == ALL:
        raise InputError(
            f"study show takes one study; {ALL!r} is for `study run`. Known: "
            f"{', '.join(_studies())}."
        )
    (entry,) = _choose([name], list(_studies()))
    trials = entry.plan(settings_of(scale.value, seeds, images, documents, passages))
    console = Console()
    with Console(stderr=True).status("counting operations"):
        flops, missing = _count(trials)
    console.print(draw_plan(entry, trials, flops, missing))


def _count(trials: "Sequence[Trial]") -> tuple[list[float], str | None]:
    """Operations of each trial; or none and what is missing to count them."""
    from flashpoint.lab.study.needs import require_data, training_flops

    try:
        require_data(trials)
        return training_flops(trials), None
    except FlashpointError as error:
        return [], str(error)


@study.command()
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...|all", help="As `study list` has them.")
    ],
    scale: Scale = ScaleName.SMALL,
    seeds: Seeds = None,
    images: Images = None,
    documents: Documents = None,
    passages: Passages = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help='Trials with this in their name alone, as "images" or "seed0"; others may '
            "follow later. May be repeated: trials with any of them.",
            show_default="all",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_of,
            metavar="DIR",
            help="Folder of the studies.",
            show_default="runs/studies/SCALE",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_JOBS,
            help="Trials at a time.",
            show_default=f"1 on a CPU, with all cores; {ON_A_GPU} on a GPU; on Ray one a core",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="local: here. ray: on a Ray that is started here and that no other machine "
            "reaches. ray://HOST:PORT: on a cluster, whose nodes have Flashpoint, the data and, "
            "best, the folder at the same paths.",
        ),
    ] = "local",
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(
            min=0, help="On Ray: the share of a GPU that a trial takes.", show_default="0.25"
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove what these studies left there first.")
    ] = False,
    keep_checkpoints: Annotated[
        bool,
        typer.Option("--keep-checkpoints", help="Keep the weights of finished trials."),
    ] = False,
) -> None:
    """Run studies and say what was found.

    \b
    flashpoint study run length-power --scale smoke
    flashpoint study run all --jobs 8
    flashpoint study run scaling qk-norm --seeds 5 --images cifar10:DIR --out results
    flashpoint study run sharpness --only images --only retrieval-softmax

    The same command again goes on: finished trials are not repeated, interrupted ones continue,
    failed ones are tried again. SIGTERM and Ctrl-C save what has begun and end with status 75.
    If trials failed the status is 1.
    """
    from flashpoint.lab.study.plan import settings_of

    _check_runner(on, jobs, gpus_per_trial)
    if fresh and only:
        raise InputError(
            f"--fresh removes all trials of a study, and --only {only[0]!r} runs some of them. "
            "Pass one of the two."
        )
    chosen = _choose(names, [*_studies(), ALL])
    settings = settings_of(scale.value, seeds, images, documents, passages)
    folder = OUT / scale.value if out is None else out
    with ExitStack() as stack:
        plans = _plan(chosen, settings, only or [""])
        stored = _settle(chosen, settings, plans, folder, fresh, stack)
        _do(stored, only or [""], on, jobs, gpus_per_trial, keep_checkpoints)
    _say_what_came_out(stored, folder)


Folder: TypeAlias = Annotated[
    Path,
    typer.Argument(parser=path_of, metavar="DIR", help="A folder of studies, or one study's."),
]


@study.command()
def pack(folder: Folder) -> None:
    """Put the records of studies into one file each, trials.jsonl, for safekeeping.

    Reports are the same as before. To run such a study further, unpack it first.
    """
    from flashpoint.lab.study.store import pack_study

    for path in _studies_below(folder):
        typer.echo(f"{path}: {pack_study(path)} trials in {TRIALS}")


@study.command()
def unpack(folder: Folder) -> None:
    """Make the folders of packed studies again, as they were."""
    from flashpoint.lab.runs.pack import is_packed
    from flashpoint.lab.study.store import unpack_study

    found = _studies_below(folder)
    for path in [path for path in found if is_packed(path)] or found[:1]:
        typer.echo(f"{path}: {unpack_study(path)} trials in folders")


def _studies_below(folder: Path) -> list[Path]:
    from flashpoint.lab.runs.trials import find_studies

    if not (found := find_studies(folder)):
        raise InputError(f"{folder} holds no study. Run one: flashpoint study run NAME.")
    return found


def _check_runner(on: str, jobs: int | None, gpus_per_trial: float | None) -> None:
    """Refuse options that the runner has no use for."""
    if on not in ("local", "ray") and not on.startswith("ray://"):
        raise InputError(
            f"--on {on!r} must be local, ray or ray://HOST:PORT. "
            f"{hint(on, ('local', 'ray'))}".rstrip()
        )
    if jobs is not None and on.startswith("ray://"):
        raise InputError(
            f"--jobs {jobs} is for this machine; on {on} the cluster's cores and GPUs decide. "
            "Pass --gpus-per-trial to have fewer trials on a GPU."
        )
    if gpus_per_trial is not None and on == "local":
        raise InputError("--gpus-per-trial is for Ray. Pass --jobs to say how many run at a time.")
    gpus = 0.0 if gpus_per_trial is None else gpus_per_trial
    if not (0 <= gpus <= 1 or gpus.is_integer()):
        raise InputError(
            f"--gpus-per-trial {gpus:g} must be a share of a GPU, up to 1, or a whole "
            "number of them."
        )
    if on != "local":
        from flashpoint.lab.study.on_ray import require_ray

        require_ray()


def _plan(
    chosen: "Sequence[Study]", settings: "Settings", only: Sequence[str]
) -> "dict[str, Sequence[Trial]]":
    """The trials of each study, or those that were asked for: some of each, by every text."""
    plans = {entry.name: entry.plan(settings) for entry in chosen}
    wanted: dict[str, Sequence[Trial]] = {
        name: [trial for trial in trials if _is_asked_for(trial.name, only)]
        for name, trials in plans.items()
    }
    for name, trials in plans.items():
        if not wanted[name]:
            raise InputError(
                f"--only {', '.join(map(repr, only))}: no trial of {name} has that in its name. "
                f"The first of {len(trials)} is {trials[0].name!r}."
            )
    for text in only:
        if not any(text in trial.name for trials in wanted.values() for trial in trials):
            raise InputError(
                f"--only {text!r}: no trial of {', '.join(plans)} has that in its name. Leave it "
                "out, or see `flashpoint study show NAME`."
            )
    return wanted


def _is_asked_for(name: str, only: Sequence[str]) -> bool:
    """Whether a trial has one of the texts in its name; the empty one is in all names."""
    return any(text in name for text in only)


def _settle(
    chosen: "Sequence[Study]",
    settings: "Settings",
    plans: "Mapping[str, Sequence[Trial]]",
    out: Path,
    fresh: bool,
    stack: ExitStack,
) -> "list[StoredStudy]":
    """Plans written to folders that are held until the stack is left."""
    from flashpoint.lab.runs import trials
    from flashpoint.lab.study import store
    from flashpoint.lab.study.needs import require_data

    require_data([trial for plan in plans.values() for trial in plan])
    for entry in chosen:
        stack.enter_context(trials.claim_study(out / entry.name))
        if fresh:
            trials.remove_study(out / entry.name)
    return [
        store.settle_study(out / entry.name, entry, settings, plans[entry.name])
        for entry in chosen
    ]


def _do(
    stored: "Sequence[StoredStudy]",
    only: Sequence[str],
    on: str,
    jobs: int | None,
    gpus_per_trial: float | None,
    keep_checkpoints: bool,
) -> None:
    """Run what is not finished of the trials that were asked for, all studies in one row."""
    from rich.console import Console

    from flashpoint.lab.cli.study_view import Progress
    from flashpoint.lab.runs.failure import Preempted
    from flashpoint.lab.study.local import run_locally
    from flashpoint.lab.study.on_ray import GPUS_PER_TRIAL, run_on_ray
    from flashpoint.lab.study.store import read_outcomes

    outcomes = [read_outcomes(entry, _studies()[entry.name]) for entry in stored]
    standing = {
        trial: one.status
        for found in outcomes
        for trial, one in found.items()
        if _is_asked_for(trial.name, only)
    }
    waiting = [trial for trial, status in standing.items() if status != "finished"]
    if not waiting:
        return
    try:
        with Progress(Console(), finished=len(standing) - len(waiting)) as progress:
            if on == "local":
                run_locally(
                    waiting,
                    jobs=_usual_jobs() if jobs is None else jobs,
                    keep_checkpoints=keep_checkpoints,
                    on_look=progress.show,
                )
            else:
                run_on_ray(
                    waiting,
                    address=on,
                    jobs=jobs,
                    gpus_per_trial=GPUS_PER_TRIAL if gpus_per_trial is None else gpus_per_trial,
                    keep_checkpoints=keep_checkpoints,
                    on_look=progress.show,
                )
    except Preempted as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(STOPPED) from stop


def _usual_jobs() -> int:
    import torch

    return ON_A_GPU if torch.cuda.is_available() else 1


def _say_what_came_out(stored: "Sequence[StoredStudy]", out: Path) -> None:
    """Verdicts and failures, and how to go on."""
    from rich.console import Console

    from flashpoint.lab.cli.demo_view import program_name
    from flashpoint.lab.cli.study_view import draw_findings
    from flashpoint.lab.study.store import read_outcomes

    console, studies = Console(), _studies()
    counts: Counter[str] = Counter()
    for entry in stored:
        outcomes = list(read_outcomes(entry, studies[entry.name]).values())
        counts.update(outcome.status for outcome in outcomes)
        console.print(draw_findings(entry.name, outcomes, studies[entry.name].findings(outcomes)))
    console.print(f"Report: {program_name()} study report {out}", soft_wrap=True, highlight=False)
    if counts["failed"]:
        typer.echo(
            f"{counts['failed']} of {counts.total()} trials failed. Why is in their {FAILURE}; "
            "the same command tries them again.",
            err=True,
        )
        raise typer.Exit(1)
    if counts["stopped"]:
        typer.echo(
            f"{counts['stopped']} of {counts.total()} trials were stopped. Give the same command "
            "again to go on.",
            err=True,
        )
        raise typer.Exit(STOPPED)


def _choose(names: Sequence[str], known: Sequence[str]) -> "list[Study]":
    """Studies by name, each once; "all" is all, where it is known."""
    for name in names:
        if name not in known:
            raise InputError(
                f"study {name!r} is unknown. {hint(name, known)}Known: {', '.join(known)}."
            )
    studies = _studies()
    return [studies[name] for name in dict.fromkeys(studies if ALL in names else names)]


def _studies() -> "Mapping[str, Study]":
    from flashpoint.lab.study.registry import STUDIES

    return STUDIES
