"""A run folder as plain data, read without torch and without the code that wrote it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict, cast

from flashpoint.errors import FlashpointError, InputError
from flashpoint.lab.runs.metrics import read_metrics
from flashpoint.lab.runs.names import ALL_MAPS, ATTENTION, CONFIG, RECORD, STATISTICS
from flashpoint.lab.runs.record import RecordFile
from flashpoint.lab.runs.stored import check, exists, listed, place_of, read_json, read_yaml

Row: TypeAlias = Mapping[str, Any]


class _Config(TypedDict):
    """As much of ``config.yaml`` as pages show."""

    model: str | Mapping[str, Any]
    steps: NotRequired[int | None]
    epochs: NotRequired[float | None]


class _Statistics(TypedDict, total=False):
    """As much of ``attention/statistics.json``."""

    heads: list[Mapping[str, int | float | bool | None]]
    num_keys: int


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
    if not exists(path / CONFIG):
        raise InputError(
            f"{path} is not a run's folder: it has no {CONFIG}. Give one that `flashpoint "
            "train` wrote."
        )
    lines = read_metrics(path)
    return RunFiles(
        path=path,
        name=name,
        config=_read_config(path / CONFIG),
        record=_read_part(path / RECORD, RecordFile),
        train=[line for line in lines if line.get("kind") == "train"],
        validation=[line for line in lines if line.get("kind") == "validation"],
        statistics=_read_part(path / ATTENTION / STATISTICS, _Statistics) or None,
        maps=listed(path / ATTENTION, ALL_MAPS),
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
    if not exists(file):
        return {}
    return read_yaml(file) if file.suffix == ".yaml" else read_json(file, dict[str, Any])


def _read_config(file: Path) -> Row:
    return cast(Row, check(read_yaml(file), _Config, place_of(file)))


def _read_part(file: Path, shape: type[Any]) -> Row:
    return cast(Row, read_json(file, shape)) if exists(file) else {}


def number(row: Row, key: str) -> float | None:
    """A finite number of a row, or None."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def mapping_of(row: Row, key: str) -> Mapping[str, Any]:
    """A part of a file, empty if it is missing or something else."""
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


class Glance(NamedTuple):
    """What the files of a run say; None is not known yet."""

    share: float = 0.0
    step: int = 0
    loss: float | None = None
    images_per_s: float | None = None
    accuracies: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def total(self) -> int | None:
        """Steps of the whole run."""
        return round(self.step / self.share) if self.share else None

    @property
    def seconds_left(self) -> float | None:
        """Of training, at the speed so far."""
        return self.seconds * (1 / self.share - 1) if self.share else None


def look_at(folder: Path) -> Glance:
    """Read a run's files; half-written ones are as good as not there."""
    try:
        config = read_mapping(folder / CONFIG)
        lines = read_metrics(folder)
    except FlashpointError:
        return Glance()
    train = [line for line in lines if line.get("kind") == "train"]
    accuracies = [number(line, "top1") for line in lines if line.get("kind") == "validation"]
    last = train[-1] if train else {}
    done, total = (
        (number(last, "epoch"), number(config, "epochs"))
        if config.get("epochs")
        else (number(last, "step"), number(config, "steps"))
    )
    is_finished = (folder / RECORD).is_file()
    return Glance(
        share=1.0 if is_finished else min((done or 0.0) / (total or 1.0), 1.0),
        step=int(number(last, "step") or 0),
        loss=number(last, "loss"),
        images_per_s=number(last, "images_per_s"),
        accuracies=tuple(a for a in accuracies if a is not None),
        seconds=number(last, "seconds") or 0.0,
    )
