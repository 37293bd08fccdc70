"""Studies on disk: ``STUDY/study.json`` and a folder for each trial, read without torch.

A trial's folder is a run's folder (``config.yaml``, ``metrics.jsonl``, ``record.json``,
``checkpoints``, ``attention``) with three files more: ``trial.json``, written before anything
else, says what is to be done; ``evaluations.json`` holds what came after training;
``failure.json`` says why it failed. A measurement has a ``record.json`` of its own. What is there
decides how a trial stands; what began and has not ended runs as long as a process holds
``STUDY/.lock``. Of a packed study all is read the same way; it runs once it is unpacked.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flashpoint.errors import InputError, describe
from flashpoint.files import json_text
from flashpoint.lab.runs import pack
from flashpoint.lab.runs.locks import is_held
from flashpoint.lab.runs.names import LOCK, LOG, STUDY, TRIAL, TRIALS
from flashpoint.lab.runs.pack import is_folder_name
from flashpoint.lab.runs.record import Numbers, RecordFile, RecordNumbers
from flashpoint.lab.runs.stored import exists, read_json
from flashpoint.lab.runs.trials import (
    FailureFile,
    again,
    claim_study,
    read_evaluations,
    read_failure,
    read_record,
)
from flashpoint.lab.runs.writing import write_json
from flashpoint.lab.study.outcome import Outcome, Status
from flashpoint.lab.study.plan import Measurement, Settings, Study, Training, Trial
from flashpoint.lab.training.config_file import differences


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFile:
    """A study's ``study.json``."""

    study: str
    settings: Settings
    trials: list[str]

    def __post_init__(self) -> None:
        for name in self.trials:
            if not is_folder_name(name):
                raise InputError(f"trials has {describe(name)}, which is no name of a folder.")
        if len(set(self.trials)) < len(self.trials):
            raise InputError("trials has a name twice.")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredStudy:
    """A study's folder.

    Attributes:
        name: of the study, as the registry knows it.
        settings: what it was run with.
        trials: folders of all its trials, in the order of the plan.
    """

    path: Path
    name: str
    settings: Settings
    trials: Sequence[Path]


def settle_study(
    folder: Path, study: Study, settings: Settings, trials: Sequence[Trial]
) -> StoredStudy:
    """Write down what is to be done; refuse a folder that holds other plans.

    More or fewer seeds are no other plan. Trials that are there already stay in the study.
    """
    if pack.is_packed(folder):
        raise InputError(
            f"{folder} is packed. Make its folders again: flashpoint study unpack {folder}. Or "
            "pass another --out."
        )
    content = {"study": study.name, "settings": asdict(settings)}
    names = [trial.name for trial in trials]
    if exists(folder / STUDY):
        before = read_study(folder)
        _require_same_study(before, study.name, settings)
        kept = [path.name for path in before.trials if exists(path / TRIAL)]
        names += [name for name in kept if name not in names]
        names = _in_order(names, study, settings, before)
    for trial in trials:
        _require_same_trial(folder / trial.name, trial)
    for trial in trials:
        if not exists(folder / trial.name / TRIAL):
            write_json(folder / trial.name / TRIAL, plain_trial(trial))
    write_json(folder / STUDY, {**content, "trials": names})
    return read_study(folder)


def _in_order(
    names: Sequence[str], study: Study, settings: Settings, before: "StoredStudy"
) -> list[str]:
    """As a plan for all seeds has them; trials that it has no more come last."""
    trials = [read_trial(path) for path in before.trials if exists(path / TRIAL)]
    seeds = [trial.factors.get("seed") for trial in trials]
    most = 1 + max((int(seed) for seed in seeds if isinstance(seed, int | float)), default=0)
    whole = replace(settings, seeds=max(settings.seeds, most))
    places = {trial.name: place for place, trial in enumerate(study.plan(whole))}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def _require_same_study(before: StoredStudy, name: str, settings: Settings) -> None:
    was = {"study": before.name, **asdict(before.settings)}
    was["passages"] = was["passages"] or settings.passages  # earlier versions noted none
    changed = differences(was, {"study": name, **asdict(settings), "seeds": was["seeds"]})
    if changed:
        pairs = [f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items()]
        raise _another_plan(before.path, "; ".join(pairs))


def _require_same_trial(folder: Path, trial: Trial) -> None:
    if not exists(folder / TRIAL):
        return
    changed = differences(plain_trial(read_trial(folder)), plain_trial(trial))
    if changed:
        key, (was, now) = next(iter(changed.items()))
        raise _another_plan(folder, f"{key} was {describe(was)}, is {describe(now)}")


def _another_plan(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} holds another plan: {what}. Pass --fresh to remove what is there, or another "
        "--out."
    )


def read_study(folder: Path) -> StoredStudy:
    """What ``settle_study`` wrote; a broken file says what to do."""
    file = folder / STUDY
    if not exists(file):
        raise InputError(
            f"{folder} is no study's folder: it has no {STUDY}. "
            "Make one: flashpoint study run NAME."
        )
    advice = f"Remove {file} and give the command that ran the study again: trials are kept."
    content = read_json(file, StudyFile, advice)
    return StoredStudy(
        path=folder,
        name=content.study,
        settings=content.settings,
        trials=[folder / name for name in content.trials],
    )


def pack_study(folder: Path) -> int:
    """Put a study's trials into one file; gives how many they are."""
    with claim_study(folder):
        stored = read_study(folder)
        for trial in stored.trials:
            read_trial(trial)
            if is_held(trial / LOCK):
                raise InputError(
                    f"{trial} is in use by a process that trains it. Wait until it ends."
                )
        pack.pack(folder, [trial.name for trial in stored.trials])
    return len(stored.trials)


def unpack_study(folder: Path) -> int:
    """Make the folders of a packed study's trials again; gives how many."""
    stored = read_study(folder)
    with claim_study(folder):
        for trial in stored.trials:
            read_trial(trial)  # or a pack that lost lines would be gone, and with it the notice
        return pack.unpack(folder)


def read_trial(folder: Path) -> Trial:
    """What ``trial.json`` says."""
    file = folder / TRIAL
    if not exists(file):
        if pack.is_packed(folder.parent):
            packed = folder.parent / TRIALS
            raise InputError(f"{packed} has no trial {folder.name!r}. Restore the file.")
        raise InputError(
            f"{folder} is no trial's folder: it has no {TRIAL}. Give the command that ran the "
            "study again."
        )
    return read_json(file, Trial, again(folder))


def read_outcome(folder: Path) -> Outcome:
    """How a trial stands, and its numbers; one whose files are broken has failed."""
    trial = read_trial(folder)
    try:
        record = read_record(folder)
        evaluations = read_evaluations(folder)
        failure = read_failure(folder)
    except InputError as error:
        return Outcome(name=trial.name, factors=trial.factors, status="failed", reason=str(error))
    status = _status(folder, trial, record, evaluations, failure)
    return Outcome(
        name=trial.name,
        factors=trial.factors,
        status=status,
        numbers=_numbers(trial, record, evaluations),
        reason=failure.get("reason", "unknown") if status == "failed" else None,
    )


def read_outcomes(stored: StoredStudy, study: Study) -> dict[Path, Outcome]:
    """Of all trials of a study; their factors are of the kinds that its findings read."""
    kinds: dict[str, set[bool]] = {}
    for trial in study.plan(replace(stored.settings, seeds=1)):
        for name, value in trial.factors.items():
            kinds.setdefault(name, set()).add(isinstance(value, str))
    outcomes = {folder: read_outcome(folder) for folder in stored.trials}
    for folder, outcome in outcomes.items():
        for name, value in outcome.factors.items():
            if isinstance(value, str) not in kinds.get(name, {isinstance(value, str)}):
                wanted = "a number" if isinstance(value, str) else "text"
                raise InputError(
                    f"{folder / TRIAL}: factors.{name}={describe(value)} must be {wanted}, as the "
                    f"study {study.name} plans it. {again(folder)}"
                )
    return outcomes


def _status(
    folder: Path,
    trial: Trial,
    record: RecordFile,
    evaluations: Mapping[str, Numbers],
    failure: FailureFile,
) -> Status:
    wanted = trial.work.afterwards if isinstance(trial.work, Training) else ()
    if record and all(evaluation.name in evaluations for evaluation in wanted):
        return "finished"
    if failure:
        return "failed"
    if not exists(folder / LOG) and not record:
        return "waiting"
    return "running" if is_held(folder.parent / LOCK) else "stopped"


def _numbers(
    trial: Trial, record: RecordFile, evaluations: Mapping[str, Numbers]
) -> dict[str, float]:
    if isinstance(trial.work, Measurement):
        rows = {"": record.get("numbers", {})}
    else:
        stated = {name: record.get(name) for name in RecordNumbers.__annotations__}
        known = {name: value for name, value in stated.items() if value is not None}
        after = {f"{name}.": numbers for name, numbers in evaluations.items()}
        rows = {"": {**known, **record.get("validation", {})}, **after}
    return {
        f"{prefix}{name}": math.nan if value is None else float(value)
        for prefix, row in rows.items()
        for name, value in row.items()
    }


def plain_trial(trial: Trial) -> dict[str, Any]:
    """A trial as it comes back from a file, which has ``is_alone`` only where it is true."""
    content = json.loads(json_text(asdict(trial)))
    if isinstance(trial.work, Measurement) and not trial.work.is_alone:
        del content["work"]["is_alone"]
    return content


def runs_alone(folder: Path) -> bool:
    """Whether nothing else may run beside a trial."""
    work = read_trial(folder).work
    return isinstance(work, Measurement) and work.is_alone
