"""What is stored, read once: benchmarks, studies and runs, by the readers that the lab has."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.bench import result_file
from flashpoint.lab.bench.result import Result
from flashpoint.lab.runs.findings import StudySection, Verdict
from flashpoint.lab.runs.run_files import RunFiles, read_runs
from flashpoint.lab.study import store
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Measurement
from flashpoint.lab.study.registry import STUDIES
from flashpoint.lab.study.sections import read_section

SEEDS = (0, 1, 2)
"""Of the runs that belong to no study."""
PERCENT = 100.0


class Stored:
    """The stored files of a repository.

    Args:
        root: of the repository; files are sought in ``benchmarks`` and ``results`` below it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bench = cache(self._bench)
        self.section = cache(self._section)
        self.outcomes = cache(self._outcomes)
        self.run = cache(self._run)

    def _bench(self, name: str) -> Result:
        """A file of ``flashpoint bench``, as "h200_long"."""
        return result_file.read(self.root / "benchmarks" / "results" / f"{name}.json")

    def has_bench(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.root / "benchmarks" / "results" / f"{name}.json").is_file()

    def read_json(self, place: str) -> Any:
        """A file of no study and no suite, by its place below the root."""
        try:
            return json.loads((self.root / place).read_text("utf-8"))
        except OSError as error:
            raise InputError(f"{place} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise InputError(f"{place} is no JSON: {error}.") from error

    def _section(self, study: str) -> StudySection:
        """A study with its verdicts and runs."""
        return read_section(self.root / "results" / study, STUDIES)

    def _outcomes(self, study: str) -> Mapping[str, Outcome]:
        """Trials of a study by name, with all their numbers."""
        found = store.read_study(self.root / "results" / study)
        outcomes = store.read_outcomes(found, STUDIES[study]).values()
        return {outcome.name: outcome for outcome in outcomes}

    def outcome(self, study: str, trial: str) -> Outcome:
        """One trial, which has finished."""
        found = self.outcomes(study).get(trial)
        if found is None or found.status != "finished":
            raise InputError(f"results/{study} has no finished trial {trial!r}.")
        return found

    def options_of(self, study: str, trial: str) -> Mapping[str, Any]:
        """What a trial was to measure, and how."""
        found = store.read_study(self.root / "results" / study)
        work = store.read_trial(next(path for path in found.trials if path.name == trial)).work
        if not isinstance(work, Measurement):
            raise InputError(f"results/{study}: {trial} is a training and measures nothing.")
        return work.options

    def verdicts(self, study: str) -> Sequence[Verdict]:
        """What the numbers say about each claim of a study."""
        return self.section(study).findings.verdicts

    def judged(self, study: str) -> list[Verdict]:
        """The same of claims for which there are runs."""
        return [verdict for verdict in self.verdicts(study) if verdict.value is not None]

    def has(self, study: str, trial: str) -> bool:
        """Whether a seed of it has finished."""
        return any(
            outcome.name.startswith(f"{trial}seed") and outcome.status == "finished"
            for outcome in self.outcomes(study).values()
        )

    def seeds_of(self, study: str, trial: str) -> list[int]:
        """Those whose trials have finished; ``trial`` is the name without ``seed0``."""
        start = f"{trial}seed"
        finished = [
            outcome.name.removeprefix(start)
            for outcome in self.outcomes(study).values()
            if outcome.name.startswith(start) and outcome.status == "finished"
        ]
        if not finished:
            raise InputError(f"results/{study} has no finished trial {start + '0'!r}.")
        return sorted(map(int, finished))

    def values(
        self, study: str, trial: str, number: str, seeds: Sequence[int] | None = None
    ) -> np.ndarray:
        """A number by seed, of all that there are or of some.

        ``trial`` is the name without ``seed0``.
        """
        seeds = self.seeds_of(study, trial) if seeds is None else seeds
        found = [self.outcome(study, f"{trial}seed{seed}").numbers for seed in seeds]
        missing = [
            seed for seed, numbers in zip(seeds, found, strict=True) if number not in numbers
        ]
        if missing:
            raise InputError(f"results/{study}: {trial}seed{missing[0]} has no number {number!r}.")
        return np.array([numbers[number] for numbers in found])

    def top1(
        self, study: str, trial: str, evaluation: str = "", seeds: Sequence[int] | None = None
    ) -> np.ndarray:
        """Percent by seed: of the validation, or of an evaluation after it, as "seen64."."""
        return PERCENT * self.values(study, f"{trial}-", f"{evaluation}top1", seeds)

    def runs(self, study: str) -> Mapping[str, RunFiles]:
        """Trainings of a study by the name of their trial."""
        return {run.name.rpartition("/")[2]: run for run in self.section(study).runs}

    def runs_of(
        self, study: str, trial: str, seeds: Sequence[int] | None = None
    ) -> list[RunFiles]:
        """The trainings of all seeds, or of some; ``trial`` is the name without ``seed0``."""
        runs = self.runs(study)
        seeds = self.seeds_of(study, trial) if seeds is None else seeds
        return [runs[self.outcome(study, f"{trial}seed{seed}").name] for seed in seeds]

    def _run(self, folder: str) -> RunFiles:
        """A training of no study, by its folder in ``benchmarks/results``."""
        (run,) = read_runs([self.root / "benchmarks" / "results" / folder])
        return run
