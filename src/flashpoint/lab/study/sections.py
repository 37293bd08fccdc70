"""From a study's folder to its part of a report, without torch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flashpoint.lab.runs.findings import DataTable, StudySection
from flashpoint.lab.runs.names import CONFIG
from flashpoint.lab.runs.run_files import Row, read_runs
from flashpoint.lab.runs.trials import read_record
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Study
from flashpoint.lab.study.repeat import commands_of
from flashpoint.lab.study.scope import describe_scope
from flashpoint.lab.study.store import read_outcomes, read_study, read_trial

MOST_NUMBERS = 16
"""Columns of the table of trials."""


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
    trained = [trial for trial in sound if (trial / CONFIG).is_file()]
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
        findings=study.findings(list(outcomes.values())),
        runs=runs,
        factors=[outcomes[trial].factors for trial in trained],
        environments=stated,
        trials=_table(list(outcomes.values())),
        commands=commands_of(study.name, stored.settings, trials, stated),
    )


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
