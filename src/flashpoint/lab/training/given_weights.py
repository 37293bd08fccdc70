"""Weights that a run starts from instead of fresh ones: of an earlier run, or from a file."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from flashpoint.convert.fitting import HEAD, Fitted
from flashpoint.convert.weights import listed
from flashpoint.errors import InputError
from flashpoint.lab.runs.beginning import read_data
from flashpoint.lab.runs.checkpoints import read_state, step_folder
from flashpoint.lab.runs.names import CHECKPOINTS, CONFIG, MODEL, STATE
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training.config_file import differences
from flashpoint.lab.training.run_folder import open_run, run_and_step

_SAID = ("image_size", "num_classes")  # by what becomes of positions and head


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenWeights:
    """Tensors by name, and where they are from.

    Attributes:
        tensors: as they are stored.
        source: the file, its SHA-256, and of a run the step.
        settings: of the model they are from, complete; None of a mere file.
        classes: that the head was trained for, in the order of its outputs; None if not known.
    """

    tensors: Mapping[str, Tensor]
    source: Mapping[str, Any]
    settings: Mapping[str, Any] | None = None
    classes: Sequence[str] | None = None


def read_weights(where: str) -> GivenWeights:
    """A run's best checkpoint or one of its others, a safetensors file, or a folder with one."""
    path = Path(where).expanduser()
    if (path / CONFIG).is_file():
        return _of_run(path)
    found = run_and_step(path)
    if found is not None:
        return _of_run(*found)
    file = path / MODEL if path.is_dir() else path
    try:
        content = file.read_bytes()
        tensors = safetensors.torch.load(content)
    except OSError as error:
        raise InputError(
            f"weights {where!r}: {file} cannot be read: {error.strerror}. Give a run's folder, "
            "its checkpoints/step_N, or a safetensors file."
        ) from error
    except SafetensorError as error:
        raise InputError(
            f"weights {where!r}: {file} is no safetensors file, or is cut ({error}). Write one by "
            "safetensors.torch.save_file(model.state_dict(), FILE); pickles are not read."
        ) from error
    source = {"file": str(file), "sha256": hashlib.sha256(content).hexdigest()}
    return GivenWeights(tensors=tensors, source=source)


def _of_run(path: Path, step: int | None = None) -> GivenWeights:
    """The best checkpoint of a run, or that of a step, compared with its checksum."""
    run, folder = open_run(path), path / CHECKPOINTS
    step = run.best_step if step is None else step
    model = run.load_model(step)
    noted, where = read_state(folder, step), step_folder(folder, step)
    digest = noted["files"].get(MODEL, noted["digest"])  # of state.json, where there are shards
    file = where / (MODEL if MODEL in noted["files"] else STATE)
    source = {"file": str(file), "sha256": digest, "step": step}
    return GivenWeights(
        tensors=model.state_dict(),
        source=source,
        settings=plain(run.config.complete_model()),
        classes=read_data(path).get("classes"),
    )


def changed_settings(
    given: GivenWeights, settings: Mapping[str, Any], whose: str
) -> dict[str, tuple[Any, Any]]:
    """Settings in which a run's model differs from the one to be, and both values.

    Other attention is what conversion is for; other heads, and gains of another norm, are refused.
    """
    if given.settings is None:
        return {}
    changed = differences(given.settings, settings)
    if "num_heads" in changed:
        before, after = changed["num_heads"]
        raise InputError(
            f"{whose} does not fit: it has {before} heads, the model {after}. "
            "Train a model of the same sizes."
        )
    before, after = changed.get("qk_norm", ("none", "none"))
    if "none" not in (before, after):
        raise InputError(
            f"{whose} does not fit: its gains are of qk_norm={before!r}, the model has {after!r}. "
            f"Set model.qk_norm={before}."
        )
    return {key: pair for key, pair in changed.items() if key not in _SAID}


def other_class(given: GivenWeights, classes: Sequence[str]) -> str | None:
    """The first class that is another than the head was trained for; None if all are the same."""
    pairs = enumerate(zip_longest(given.classes or classes, classes))
    return next((f"class {n} was {a!r}, is {b!r}" for n, (a, b) in pairs if a != b), None)


def describe_start(facts: Mapping[str, Any]) -> str:
    """What became of given weights, in one line."""
    new, left_out = facts["new"], facts["left_out"]
    rest = [name for name in new if name not in HEAD]
    parts = [f"{facts['taken']} weights of {facts['file']}"]
    if len(rest) < len(new):
        why = facts["other_class"]
        parts.append(f"a new head ({why})" if why else "a new head")
    if rest:
        parts.append(f"{len(rest)} more that are new: {listed(rest)}")
    if facts["grids"]:
        before, after = facts["grids"]
        parts.append(f"positions from {before} x {before} to {after} x {after}")
    if left_out:
        parts.append(f"{len(left_out)} left out: {listed(left_out)}")
    if facts["settings"]:
        pairs = facts["settings"].items()
        changed = [f"{key} from {before!r} to {after!r}" for key, (before, after) in pairs]
        parts.append(f"changed settings: {', '.join(changed)}")
    return f"starting from {'; '.join(parts)}."


def start_facts(
    given: GivenWeights,
    fitted: Fitted,
    changed: Mapping[str, tuple[Any, Any]],
    other: str | None,
) -> dict[str, Any]:
    """The same as plain data, for the run's folder and its record."""
    return {
        **given.source,
        "taken": len(fitted.weights),
        "new": list(fitted.new),
        "left_out": list(fitted.left_out),
        "grids": fitted.grids,
        "other_class": other,
        "settings": dict(changed),
    }
