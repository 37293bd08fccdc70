"""From a study's folder to its part of a report, without torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flashpoint.report.findings import DataTable
from flashpoint.report.run_files import read_runs
from flashpoint.report.study_report import StudySection
from flashpoint.study.defaults import options_of
from flashpoint.study.outcome import Outcome
from flashpoint.study.plan import Study
from flashpoint.study.store import read_outcome, read_study

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
    outcomes = {trial: read_outcome(trial) for trial in stored.trials}
    trained = [
        trial
        for trial, outcome in outcomes.items()
        if outcome.status != "failed" and (trial / "config.yaml").is_file()
    ]
    return StudySection(
        name=study.name,
        question=study.question,
        source=study.source,
        claim=study.claim,
        findings=study.findings(list(outcomes.values())),
        runs=read_runs(trained) if trained else [],
        trials=_table(list(outcomes.values())),
        options=options_of(stored.settings),
    )


def _table(outcomes: Sequence[Outcome]) -> DataTable:
    factors = list(dict.fromkeys(name for outcome in outcomes for name in outcome.factors))
    numbers = list(dict.fromkeys(name for outcome in outcomes for name in outcome.numbers))
    numbers = numbers[:MOST_NUMBERS]
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
