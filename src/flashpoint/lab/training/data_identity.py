"""What a run learns from, as one small file in its folder: going on, it must find the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from flashpoint.errors import InputError, describe
from flashpoint.files import json_text
from flashpoint.lab.runs.stored import exists, read_json
from flashpoint.lab.training.checkpoint import replace_file

FILE = "data.json"
_ADVICE = "Restore it, or pass another --out."


class _Identity(TypedDict, total=False):
    """What others than the task itself read."""

    classes: list[str]


def write_data(folder: Path, found: Mapping[str, Any]) -> None:
    """Write what a new run found; an old run's file stays as it is."""
    if not exists(folder / FILE):
        replace_file(folder / FILE, json_text(found, indent=1).encode())


def require_same_data(folder: Path, found: Mapping[str, Any]) -> None:
    """Refuse other data in an old run's folder."""
    if not exists(folder / FILE):
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
    file = folder / FILE
    return cast("dict[str, Any]", read_json(file, _Identity, _ADVICE)) if exists(file) else {}
