"""Where the numbers come from: machine, versions, and the commands that make them again."""

import shlex
from collections.abc import Mapping, Sequence

from flashpoint.report.format import DASH
from flashpoint.report.html import join, table, tag
from flashpoint.report.page import Section
from flashpoint.report.run_files import RunFiles


def environment(runs: Sequence[RunFiles]) -> Section:
    """What each run was made with; what all share is said once."""
    found = [run.record.get("environment") for run in runs]
    stated = [entry if isinstance(entry, Mapping) else {} for entry in found]
    names = dict.fromkeys(name for entry in stated for name in entry)
    shared: list[tuple[str, str]] = []
    others: list[tuple[str, ...]] = []
    for name in names:
        values = [DASH if entry.get(name) is None else str(entry[name]) for entry in stated]
        if set(values) == {DASH}:
            continue
        if len(set(values)) == 1:
            shared.append((_label(name), values[0]))
        else:
            others.append((_label(name), *values))
    parts = [tag("div", table(("", "all runs"), shared, label="environment"), class_="facts")]
    if others:
        head = ("", *(run.name for run in runs))
        parts.append(tag("div", table(head, others, label="differences"), class_="facts"))
    return Section(title="Environment", anchor="environment", body=join(parts))


def commands(runs: Sequence[RunFiles]) -> Section:
    """What to type to get each run, its numbers and this page again."""
    lines: list[str] = []
    for run in runs:
        config = shlex.quote(str(run.path / "config.yaml"))
        again = shlex.quote(f"{run.path}-again")
        lines.append(f"flashpoint train {config} --out {again}")
    folders = " ".join(shlex.quote(str(run.path)) for run in runs)
    lines += [f"flashpoint evaluate {shlex.quote(str(run.path))}" for run in runs]
    lines.append(f"flashpoint report {folders}")
    body = join(
        [
            tag("p", "The same config and commit give the same curve on the same kind of device."),
            tag("pre", tag("code", "\n".join(lines))),
        ]
    )
    return Section(title="To repeat it", anchor="commands", body=body)


def _label(name: str) -> str:
    return name.replace("_", " ")
