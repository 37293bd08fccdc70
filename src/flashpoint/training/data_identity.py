"""What a run learns from, as one small file in its folder: going on, it must find the same."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashpoint.errors import InputError, describe
from flashpoint.files import json_text
from flashpoint.training.checkpoint import replace_file

FILE = "data.json"


def settle_data(folder: Path, found: Mapping[str, Any]) -> None:
    """Write what a new run found; refuse other data in an old run's folder."""
    kept = read_data(folder)
    if not kept:
        replace_file(folder / FILE, json_text(found, indent=1).encode())
        return
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
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
