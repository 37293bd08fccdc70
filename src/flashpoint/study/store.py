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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashpoint.errors import InputError, describe
from flashpoint.files import InUse, is_held, json_text, locked, write_atomically
from flashpoint.report.run_files import number, read_mapping
from flashpoint.study.outcome import Outcome, Status
from flashpoint.study.plan import Evaluation, Measurement, Settings, Study, Training, Trial
from flashpoint.training.config_file import differences

STUDY = "study.json"
TRIAL = "trial.json"
RECORD = "record.json"
EVALUATIONS = "evaluations.json"
FAILURE = "failure.json"
ATTENTION = "attention"
LOG = "log.txt"
LOCK = ".lock"
LAST_LINES = 40
"""Of the log, kept beside the reason of a failure."""

_RECORD_NUMBERS = (
    *("seconds", "samples_per_s", "flops", "num_parameters", "train_loss", "peak_memory_bytes"),
    "skipped",
)
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
    if (folder / STUDY).exists():
        before = read_study(folder)
        _require_same_study(before, study.name, settings)
        kept = [path.name for path in before.trials if (path / TRIAL).is_file()]
        names += [name for name in kept if name not in names]
    for trial in trials:
        _require_same_trial(folder / trial.name, trial)
    for trial in trials:
        if not (folder / trial.name / TRIAL).exists():
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
    if not (folder / TRIAL).exists():
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
    if not file.is_file():
        raise InputError(
            f"{folder} is no study's folder: it has no {STUDY}. "
            "Make one: flashpoint study run NAME."
        )
    again = f"Remove {file} and give the command that ran the study again: trials are kept."
    try:
        content = read_mapping(file)
    except InputError as error:
        raise InputError(f"{error} {again}") from error
    try:
        return StoredStudy(
            path=folder,
            name=content["study"],
            settings=Settings(**content["settings"]),
            trials=[folder / name for name in content["trials"]],
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{file} is no study's: {describe(error)}. {again}") from error


def find_studies(folder: Path) -> list[Path]:
    """The folder itself if it is a study's, else those in it that are, by name.

    Example:
        >>> find_studies(Path("no/such/folder"))
        []
    """
    if (folder / STUDY).is_file():
        return [folder]
    return sorted(file.parent for file in folder.glob(f"*/{STUDY}"))


def read_trial(folder: Path) -> Trial:
    """What ``trial.json`` says."""
    file = folder / TRIAL
    if not file.is_file():
        raise InputError(
            f"{folder} is no trial's folder: it has no {TRIAL}. Give the command that ran the "
            "study again."
        )
    content = read_part(file)
    try:
        return Trial(name=content["name"], factors=content["factors"], work=_work(content["work"]))
    except InputError as error:
        raise InputError(f"{file}: {error} {_again(folder)}") from error
    except (KeyError, TypeError) as error:
        raise InputError(f"{file} is no trial's: {describe(error)}. {_again(folder)}") from error


def read_part(file: Path) -> Mapping[str, Any]:
    """One of a trial's JSON files, empty if it is not there; a broken one says what to do."""
    try:
        return read_mapping(file)
    except InputError as error:
        raise InputError(f"{error} {_again(file.parent)}") from error


def _again(folder: Path) -> str:
    return f"Remove {folder} to do the trial again."


def _work(content: Mapping[str, Any]) -> Training | Measurement:
    if "function" in content:
        return Measurement(**content)
    afterwards = tuple(Evaluation(**evaluation) for evaluation in content["afterwards"])
    return Training(config=content["config"], afterwards=afterwards)


def read_outcome(folder: Path) -> Outcome:
    """How a trial stands, and its numbers; one whose files are broken has failed."""
    trial = read_trial(folder)
    try:
        record = read_part(folder / RECORD)
        evaluations = read_part(folder / EVALUATIONS)
        failure = read_part(folder / FAILURE)
    except InputError as error:
        return Outcome(name=trial.name, factors=trial.factors, status="failed", reason=str(error))
    status = _status(folder, trial, record, evaluations, failure)
    return Outcome(
        name=trial.name,
        factors=trial.factors,
        status=status,
        numbers=_numbers(trial, record, evaluations),
        reason=str(failure.get("reason", "unknown")) if status == "failed" else None,
    )


def _status(
    folder: Path,
    trial: Trial,
    record: Mapping[str, Any],
    evaluations: Mapping[str, Any],
    failure: Mapping[str, Any],
) -> Status:
    wanted = trial.work.afterwards if isinstance(trial.work, Training) else ()
    if record and all(evaluation.name in evaluations for evaluation in wanted):
        return "finished"
    if failure:
        return "failed"
    if not (folder / LOG).exists() and not record:
        return "waiting"
    return "running" if is_held(folder.parent / LOCK) else "stopped"


def _numbers(
    trial: Trial, record: Mapping[str, Any], evaluations: Mapping[str, Any]
) -> dict[str, float]:
    if isinstance(trial.work, Measurement):
        rows = {"": record.get("numbers", {})}
    else:
        known = {name: record[name] for name in _RECORD_NUMBERS if record.get(name) is not None}
        after = {f"{name}.": numbers for name, numbers in evaluations.items()}
        rows = {"": {**known, **record.get("validation", {})}, **after}
    found = {  # null is what JSON has for a number that is not finite
        f"{prefix}{name}": math.nan if row[name] is None else number(row, name)
        for prefix, row in rows.items()
        for name in row
    }
    return {name: value for name, value in found.items() if value is not None}


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
