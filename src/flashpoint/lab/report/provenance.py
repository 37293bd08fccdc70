"""Where the numbers come from: machine, versions, and the commands that make them again."""

import shlex
from collections.abc import Mapping, Sequence

from flashpoint.lab.report.html import Child, Html, join, table, tag
from flashpoint.lab.runs.format import DASH
from flashpoint.lab.runs.names import CONFIG
from flashpoint.lab.runs.run_files import Row, RunFiles

SAME = (
    "The same config and commit give the same curve on the same kind of device; with softmax over "
    "documents on a GPU, up to the order in which PyTorch's kernels add."
)
TIME = "time_utc"


def environment(runs: Sequence[RunFiles]) -> Html:
    """What each run was made with; what all share is said once."""
    shared, others = _split([_stated(run) for run in runs])
    parts = [_facts(shared, "all runs")]
    if others:
        head = ("what", *(run.name for run in runs))
        rows = [(_label(name), *values) for name, values in others.items()]
        listed = table(head, rows, label="differences", file="differences.csv")
        parts.append(tag("div", listed, class_="facts"))
    return join(parts)


def environments(studies: Mapping[str, Sequence[Row]]) -> Html:
    """The same of many trials: a row for each environment, with the studies made in it.

    Args:
        studies: environments of all trials, by the study's name.
    """
    made = [(study, stated) for study, members in studies.items() for stated in members]
    if not made:
        return tag("p", "No study has a trial that says where it was made.")
    shared, others = _split([stated for _, stated in made], apart=(TIME,))
    kinds: dict[tuple[str, ...], list[tuple[str, Row]]] = {}
    for i, one in enumerate(made):
        kinds.setdefault(tuple(values[i] for values in others.values()), []).append(one)
    head = (*map(_label, others), "trials", "studies", "first ended", "last ended")
    rows: list[list[Child]] = []
    for values, members in kinds.items():
        found = [str(time) for _, stated in members if (time := stated.get(TIME))]
        times = sorted(time[:16].replace("T", " ") for time in found) or [DASH]
        names = ", ".join(dict.fromkeys(study for study, _ in members))
        rows.append([*values, len(members), names, times[0], times[-1]])
    listed = table(head, rows, label="environments", file="environments.csv")
    return join([_facts(shared, "all trials"), tag("div", listed, class_="facts stacked")])


def _stated(run: RunFiles) -> Row:
    found = run.record.get("environment")
    return found if isinstance(found, Mapping) else {}


def _split(
    stated: Sequence[Row], apart: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """What all say alike, and what each says where they differ; without the names ``apart``."""
    shared: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for entry in stated for name in entry if name not in apart):
        values = [DASH if entry.get(name) is None else str(entry[name]) for entry in stated]
        if len(set(values)) > 1:
            others[name] = values
        elif values[0] != DASH:
            shared[name] = values[0]
    return shared, others


def _facts(shared: Mapping[str, str], whose: str) -> Html:
    rows = [(_label(name), value) for name, value in shared.items()]
    return tag(
        "div",
        table(("what", whose), rows, label="environment", file="environment.csv"),
        class_="facts",
    )


def commands(runs: Sequence[RunFiles]) -> Html:
    """What to type to get each run, its numbers and this page again."""
    lines: list[str] = []
    for run in runs:
        config = shlex.quote(str(run.path / CONFIG))
        again = shlex.quote(f"{run.path}-again")
        lines.append(f"flashpoint train {config} --out {again}")
    folders = " ".join(shlex.quote(str(run.path)) for run in runs)
    lines += [f"flashpoint evaluate {shlex.quote(str(run.path))}" for run in runs]
    lines.append(f"flashpoint report {folders}")
    return join([tag("p", SAME), tag("pre", tag("code", "\n".join(lines)))])


def _label(name: str) -> str:
    return name.replace("_", " ")
