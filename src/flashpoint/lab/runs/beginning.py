"""What a run begins with, as small files in its folder: its data and, if given, its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from flashpoint.errors import InputError, describe
from flashpoint.lab.runs.names import DATA, START
from flashpoint.lab.runs.stored import exists, read_json
from flashpoint.lab.runs.writing import write_json

_ADVICE = "Restore it, or pass another --out."


class _Identity(TypedDict, total=False):
    """What others than the task itself read."""

    classes: list[str]


def write_data(folder: Path, found: Mapping[str, Any]) -> None:
    """Write what a new run found; an old run's file stays as it is."""
    if not exists(folder / DATA):
        write_json(folder / DATA, found)


def require_same_data(folder: Path, found: Mapping[str, Any]) -> None:
    """Refuse other data in an old run's folder."""
    if not exists(folder / DATA):
        return
    kept = read_data(folder)
    differing = [
        f"{key} was {describe(kept.get(key))}, is {describe(value)}"
        for key, value in found.items()
        if kept.get(key) != value
    ]
    if differing:
        raise InputError(
            f"{folder} was begun with other data: {'; '.join(differing)}. Bring those back, or "
            "pass another --out."
        )


def read_data(folder: Path) -> dict[str, Any]:
    """What a run found when it began; nothing if it did not begin."""
    file = folder / DATA
    return cast("dict[str, Any]", read_json(file, _Identity, _ADVICE)) if exists(file) else {}


def write_start(folder: Path, facts: Mapping[str, Any]) -> None:
    """Keep what weights a run started from, for they are not read again when the run goes on."""
    if facts:
        write_json(folder / START, facts)


def read_start(folder: Path) -> dict[str, Any]:
    """What weights a run started from; nothing if from fresh ones."""
    file = folder / START
    return read_json(file, dict[str, Any]) if exists(file) else {}
