"""Files of a study and of its trials that hold no plan; ``study/store.py`` reads the plans.

A trial's folder is a run's folder with files more: ``evaluations.json`` holds what came after
training, ``failure.json`` says why it failed. A measurement has a ``record.json`` of its own.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypedDict, TypeVar

from flashpoint.errors import InputError
from flashpoint.lab.runs.locks import InUse, locked
from flashpoint.lab.runs.names import (
    CHECKPOINTS,
    EVALUATIONS,
    EVENTS,
    FAILURE,
    LOCK,
    LOG,
    PIECES,
    RECORD,
    SAVED,
    STUDY,
    TRIAL,
    TRIALS,
)
from flashpoint.lab.runs.pack import is_packed
from flashpoint.lab.runs.record import Numbers, RecordFile
from flashpoint.lab.runs.stored import exists, read_json
from flashpoint.lab.runs.writing import remove_parts, write_json

T = TypeVar("T")
LAST_LINES = 40
"""Of the log, kept beside the reason of a failure."""
_NOT_TO_KEEP = (CHECKPOINTS, SAVED, EVENTS, PIECES, LOCK)
"""What a finished trial needs no more: weights, and what metrics.jsonl says too."""


class FailureFile(TypedDict, total=False):
    """A trial's ``failure.json``."""

    reason: str
    log: list[str]


def find_studies(folder: Path) -> list[Path]:
    """The folder itself if it is a study's, else those in it that are, by name.

    Example:
        >>> find_studies(Path("no/such/folder"))
        []
    """
    if exists(folder / STUDY):
        return [folder]
    return sorted(file.parent for file in folder.glob(f"*/{STUDY}"))


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
    return read_json(file, shape, again(file.parent)) if exists(file) else shape()


def again(folder: Path) -> str:
    """What to do about a trial whose files are broken."""
    if not os.path.lexists(folder) and is_packed(folder.parent):
        return f"Restore {folder.parent / TRIALS}."
    return f"Remove {folder} to do the trial again."


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
    """Remove a study's trials, packed ones too, and its ``study.json``; nothing else."""
    for file in folder.glob(f"*/{TRIAL}"):
        shutil.rmtree(file.parent)
    for name in (TRIALS, STUDY):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def claim_study(folder: Path) -> Generator[None]:
    """Hold a study's folder; refused while another command runs the study there."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / LOCK))
            remove_parts(folder)
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
