"""Studies on disk: ``STUDY/study.json`` and a folder for each trial, read without torch.

A trial's folder is a run's folder (``config.yaml``, ``metrics.jsonl``, ``record.json``,
``checkpoints``, ``attention``) with three files more: ``trial.json``, written before anything
else, says what is to be done; ``evaluations.json`` holds what came after training;
``failure.json`` says why it failed. A measurement has a ``record.json`` of its own. What is there
decides how a trial stands; what began and has not ended runs as long as a process holds
``STUDY/.lock``.
"""

import json
import math
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from flashpoint.errors import InputError, describe
from flashpoint.files import InUse, is_held, json_text, locked, write_atomically
from flashpoint.lab.runs.stored import exists, read_json
from flashpoint.lab.study.outcome import Outcome, Status
from flashpoint.lab.study.plan import Measurement, Settings, Study, Training, Trial
from flashpoint.lab.training.config_file import differences

STUDY = "study.json"
TRIAL = "trial.json"
RECORD = "record.json"
EVALUATIONS = "evaluations.json"
FAILURE = "failure.json"
ATTENTION = "attention"
LOG = "log.txt"
LOCK = ".lock"
LONGEST_NAME = 255
"""Bytes of a folder's name, on any usual file system."""
LAST_LINES = 40
"""Of the log, kept beside the reason of a failure."""

T = TypeVar("T")
Numbers = dict[str, int | float | None]
"""By name; null is what JSON has for a number that is not finite."""


class RecordNumbers(TypedDict, total=False):
    """Those of a training's record that an outcome has."""

    seconds: float | None
    samples_per_s: float | None
    flops: float | None
    num_parameters: float | None
    train_loss: float | None
    peak_memory_bytes: float | None
    skipped: float | None


class RecordFile(RecordNumbers, total=False):
    """A trial's ``record.json``, as far as a study reads it."""

    validation: Numbers
    numbers: Numbers
    environment: dict[str, Any]


class FailureFile(TypedDict, total=False):
    """A trial's ``failure.json``."""

    reason: str
    log: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFile:
    """A study's ``study.json``."""

    study: str
    settings: Settings
    trials: list[str]

    def __post_init__(self) -> None:
        for name in self.trials:
            is_long = len(name.encode()) > LONGEST_NAME
            if name in ("", ".", "..") or "/" in name or "\0" in name or is_long:
                raise InputError(f"trials has {describe(name)}, which is no name of a folder.")
        if len(set(self.trials)) < len(self.trials):
            raise InputError("trials has a name twice.")


_NOT_TO_KEEP = ("checkpoints", "events.*", "pieces.model", LOCK)
"""What a finished trial needs no more: weights, and what metrics.jsonl says too."""


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
    content = {"study": study.name, "settings": asdict(settings)}
    names = [trial.name for trial in trials]
    if exists(folder / STUDY):
        before = read_study(folder)
        _require_same_study(before, study.name, settings)
        kept = [path.name for path in before.trials if exists(path / TRIAL)]
        names += [name for name in kept if name not in names]
    for trial in trials:
        _require_same_trial(folder / trial.name, trial)
    for trial in trials:
        if not exists(folder / trial.name / TRIAL):
            write_json(folder / trial.name / TRIAL, plain_trial(trial))
    write_json(folder / STUDY, {**content, "trials": names})
    return read_study(folder)


def _require_same_study(before: StoredStudy, name: str, settings: Settings) -> None:
    was = {"study": before.name, **asdict(before.settings)}
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
    again = f"Remove {file} and give the command that ran the study again: trials are kept."
    content = read_json(file, StudyFile, again)
    return StoredStudy(
        path=folder,
        name=content.study,
        settings=content.settings,
        trials=[folder / name for name in content.trials],
    )


def find_studies(folder: Path) -> list[Path]:
    """The folder itself if it is a study's, else those in it that are, by name.

    Example:
        >>> find_studies(Path("no/such/folder"))
        []
    """
    if exists(folder / STUDY):
        return [folder]
    return sorted(file.parent for file in folder.glob(f"*/{STUDY}"))


def read_trial(folder: Path) -> Trial:
    """What ``trial.json`` says."""
    file = folder / TRIAL
    if not exists(file):
        raise InputError(
            f"{folder} is no trial's folder: it has no {TRIAL}. Give the command that ran the "
            "study again."
        )
    return read_json(file, Trial, _again(folder))


def read_record(folder: Path) -> RecordFile:
    """What a trial's ``record.json`` says; nothing before its work has ended."""
    return _read_part(folder / RECORD, RecordFile)


def read_evaluations(folder: Path) -> dict[str, Numbers]:
    """Numbers of ``evaluations.json`` by the evaluation's name."""
    return _read_part(folder / EVALUATIONS, dict[str, Numbers])


def read_failure(folder: Path) -> FailureFile:
    """What ``failure.json`` says; nothing of a trial that did not fail."""
    return _read_part(folder / FAILURE, FailureFile)


def _read_part(file: Path, shape: type[T]) -> T:
    """One of a trial's files, empty if it is not there; a broken one says what to do."""
    return read_json(file, shape, _again(file.parent)) if exists(file) else shape()


def _again(folder: Path) -> str:
    return f"Remove {folder} to do the trial again."


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
                    f"study {study.name} plans it. {_again(folder)}"
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


def record_failure(folder: Path, reason: str) -> None:
    """Note in one line why a trial failed, and the end of its log."""
    log = folder / LOG
    lines = log.read_text("utf-8", errors="replace").splitlines() if log.is_file() else []
    content = {"reason": " ".join(reason.split())[:1000], "log": lines[-LAST_LINES:]}
    write_json(folder / FAILURE, content)


def tidy(folder: Path) -> None:
    """Remove what a finished trial needs no more; what is left is small: text, and maps."""
    for pattern in _NOT_TO_KEEP:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def remove_study(folder: Path) -> None:
    """Remove a study's trials and its ``study.json``, and nothing else."""
    for file in folder.glob(f"*/{TRIAL}"):
        shutil.rmtree(file.parent)
    (folder / STUDY).unlink(missing_ok=True)


@contextmanager
def claim_study(folder: Path) -> Generator[None]:
    """Hold a study's folder; refused while another command runs the study there."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / LOCK))
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written: {error.strerror}. Pass another --out."
            ) from error
        except InUse as owner:
            raise InputError(
                f"{folder} is in use by process {owner}, which runs this study. Wait until it "
                "ends, or pass another --out."
            ) from owner
        yield


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Plain data as a file that is there whole or not at all."""
    text = json_text(content, indent=1) + "\n"
    write_atomically(file, lambda handle: handle.write(text.encode()))


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
