"""A run folder as plain data, read without torch and without the code that wrote it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml

from flashpoint.errors import InputError

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """What one run left on disk.

    Attributes:
        name: the folder's name, or more of its path where several runs share one.
        config: ``config.yaml``.
        record: ``record.json``; empty while the run has not ended.
        train, validation: lines of ``metrics.jsonl`` by kind, in order of their steps.
        statistics: ``attention/statistics.json`` of ``flashpoint inspect``, or None.
        maps: ``attention/maps*.png``.
    """

    path: Path
    name: str
    config: Row
    record: Row
    train: Sequence[Row]
    validation: Sequence[Row]
    statistics: Row | None
    maps: Sequence[Path]


def read_runs(paths: Sequence[Path]) -> list[RunFiles]:
    """All runs, under names that tell them apart."""
    if not paths:
        raise InputError("no run's folder is given. Name at least one, as runs/demo/relu.")
    return [_read_run(path, name) for path, name in zip(paths, _short_names(paths), strict=True)]


def _read_run(path: Path, name: str) -> RunFiles:
    if not (path / "config.yaml").is_file():
        raise InputError(
            f"{path} is not a run's folder: it has no config.yaml. Give one that `flashpoint "
            "train` wrote."
        )
    lines = read_lines(path / "metrics.jsonl")
    return RunFiles(
        path=path,
        name=name,
        config=read_mapping(path / "config.yaml"),
        record=read_mapping(path / "record.json"),
        train=[line for line in lines if line.get("kind") == "train"],
        validation=[line for line in lines if line.get("kind") == "validation"],
        statistics=read_mapping(path / "attention" / "statistics.json") or None,
        maps=sorted((path / "attention").glob("maps*.png")),
    )


def _short_names(paths: Sequence[Path]) -> list[str]:
    """As few of the last parts of the paths as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    longest = max(len(p) for p in parts)
    for count in range(1, longest + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            return names
    raise AssertionError("whole paths tell runs apart")


def read_mapping(file: Path) -> Row:
    """A YAML or JSON file; empty if it is not there."""
    if not file.is_file():
        return {}
    try:
        content = file.read_text(encoding="utf-8")
        data = yaml.safe_load(content) if file.suffix == ".yaml" else json.loads(content)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} cannot be read: {reason}.") from error
    if not isinstance(data, dict):
        raise InputError(f"{file} must hold a mapping, not {type(data).__name__}.")
    return cast(Row, data)


def read_lines(file: Path) -> list[Row]:
    """Every whole line; the last may be half written while the run goes on."""
    if not file.is_file():
        return []
    lines = file.read_bytes().splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise InputError(f"{file}, line {number} is not JSON.") from error
    return rows


def number(row: Row, key: str) -> float | None:
    """A finite number of a row, or None."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
