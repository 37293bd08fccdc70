"""From a study's folder to its part of a report, without torch: findings, runs, commands."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashpoint.lab.data.small_sets import PREPARED
from flashpoint.lab.runs.findings import DataTable, Findings, StudySection
from flashpoint.lab.runs.names import CONFIG
from flashpoint.lab.runs.run_files import Row, read_runs
from flashpoint.lab.runs.stored import exists
from flashpoint.lab.runs.trials import read_record
from flashpoint.lab.study.needs import Need, needs_of
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Settings, Study, Trial, options_of
from flashpoint.lab.study.scope import describe_scope
from flashpoint.lab.study.store import StoredStudy, read_outcomes, read_study, read_trial

MOST_NUMBERS = 16
"""Columns of the table of trials."""
DIRTY = "-dirty"
"""Behind the commit of a checkout that was changed."""


def read_section(folder: Path, studies: Mapping[str, Study]) -> StudySection:
    """All that a page shows of a study.

    Args:
        folder: of the study.
        studies: those that are known, by name; it is one of them.
    """
    stored = read_study(folder)
    study = studies[stored.name]
    outcomes = read_outcomes(stored, study)
    sound = [trial for trial, outcome in outcomes.items() if outcome.status != "failed"]
    trained = [trial for trial in sound if exists(trial / CONFIG)]
    runs = read_runs(trained) if trained else []
    stated = _environments(sound)
    trials = [read_trial(trial) for trial in stored.trials]
    return StudySection(
        name=study.name,
        question=study.question,
        source=study.source,
        claim=study.claim,
        scope=describe_scope(stored.settings.scale, runs, list(outcomes.values())),
        departures=study.departures,
        findings=_with_plan(study.findings(list(outcomes.values())), stored, study),
        runs=runs,
        factors=[outcomes[trial].factors for trial in trained],
        environments=stated,
        trials=_table(list(outcomes.values())),
        commands=commands_of(study.name, stored.settings, trials, stated),
    )


def _with_plan(findings: Findings, stored: StoredStudy, study: Study) -> Findings:
    """What was found, and which trials the plan has got since."""
    known = {trial.name for trial in stored.trials}
    new = [trial.name for trial in study.plan(stored.settings) if trial.name not in known]
    if not new:
        return findings
    arms = dict.fromkeys(re.sub(r"-seed\d+$", "", name) for name in new)
    note = f"Planned since, and not yet run: {len(new)} trials, of {', '.join(arms)}."
    return replace(findings, notes=[*findings.notes, note])


def _environments(trials: Iterable[Path]) -> list[Row]:
    """What records say of where they were made, those of measurements too."""
    found = (read_record(trial).get("environment") for trial in trials)
    return [stated for stated in found if stated is not None]


def _table(outcomes: Sequence[Outcome]) -> DataTable:
    factors = list(dict.fromkeys(name for outcome in outcomes for name in outcome.factors))
    counts = Counter(name for outcome in outcomes for name in outcome.numbers)
    numbers = [name for name, _ in counts.most_common(MOST_NUMBERS)]
    rows = [
        (
            *(outcome.name, outcome.status),
            *(outcome.factors.get(name) for name in factors),
            *(outcome.numbers.get(name) for name in numbers),
            outcome.reason,
        )
        for outcome in outcomes
    ]
    head = ("trial", "status", *factors, *numbers, "reason")
    return DataTable(name="trials", title="Trials", head=head, rows=rows)


def commands_of(
    name: str,
    settings: Settings,
    trials: Sequence[Trial],
    environments: Sequence[Mapping[str, Any]],
) -> list[str]:
    """The commands that make a study's numbers again: its commit, its data, the study.

    Args:
        name: of the study.
        settings: what it was run with.
        trials: what was done.
        environments: of all records, which say at what commit.
    """
    prepared = [prepare_command(need) for need in needs_of(trials)]
    return [
        *_checkout(environments),
        *dict.fromkeys(line for line in prepared if line),
        shlex.join(["flashpoint", "study", "run", name, *options_of(settings)]),
    ]


def _checkout(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commit of most trials; what else there is to say about it stands behind it."""
    found = Counter(str(stated["commit"]) for stated in environments if stated.get("commit"))
    if not found:
        return []
    (commit, times), *others = found.most_common()
    clean = commit.removesuffix(DIRTY)
    remarks = ["with changes that were not committed"] if clean != commit else []
    if others:
        remarks.append(f"{times} of {found.total()} trials")
        remarks += [f"{number} at {shlex.quote(other)}" for other, number in others]
    behind = f"  # {', '.join(remarks)}" if remarks else ""
    return [f"git checkout {shlex.quote(clean)}{behind}"]


_SETS = {"documents": "en-de-docs", "passages": "linux-doc"}
"""What ``flashpoint data prepare`` makes of each kind of text."""


def prepare_command(need: Need) -> str:
    """How a place comes to be; empty where ``flashpoint data prepare`` does not make it.

    Example:
        >>> prepare_command(Need("data/en-de-docs", "documents"))
        'flashpoint data prepare en-de-docs --to data/en-de-docs'
    """
    kind, colon, rest = need.place.partition(":")
    if need.kind in _SETS:
        folder = rest.partition(":")[0] if kind == need.kind else "" if colon else need.place
        name = _SETS[need.kind]
        return f"flashpoint data prepare {name} --to {shlex.quote(folder)}" if folder else ""
    if kind not in PREPARED or not rest:
        return ""
    known, folder = PREPARED[kind], shlex.quote(rest.partition(":")[0])
    return f"{known.fetch} && flashpoint data prepare {kind} --from {known.file} --to {folder}"
