"""Weights that a run starts from instead of fresh ones: of an earlier run, or from a file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from flashpoint.convert.fitting import HEAD, Fitted
from flashpoint.convert.weights import listed
from flashpoint.errors import InputError
from flashpoint.files import json_text
from flashpoint.training.checkpoint import read_state, replace_file, step_folder
from flashpoint.training.run_folder import CHECKPOINTS, CONFIG, open_run

FILE = "weights.json"
MODEL = "model.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenWeights:
    """Tensors by name, and where they are from.

    Attributes:
        tensors: as they are stored.
        source: the file, its SHA-256, and of a run the step.
        num_heads: of the model they are from, which shapes do not tell; None of a mere file.
    """

    tensors: Mapping[str, Tensor]
    source: Mapping[str, Any]
    num_heads: int | None


def read_weights(where: str) -> GivenWeights:
    """The best checkpoint of a run's folder, or a safetensors file, or the one in a folder."""
    path = Path(where).expanduser()
    if (path / CONFIG).is_file():
        return _of_run(path)
    file = path / MODEL if path.is_dir() else path
    try:
        content = file.read_bytes()
        tensors = safetensors.torch.load(content)
    except OSError as error:
        raise InputError(
            f"weights {where!r}: {file} cannot be read: {error.strerror}. Give a run's folder or "
            "a safetensors file."
        ) from error
    except SafetensorError as error:
        raise InputError(
            f"weights {where!r}: {file} is no safetensors file, or is cut ({error}). Write one by "
            "safetensors.torch.save_file(model.state_dict(), FILE); pickles are not read."
        ) from error
    source = {"file": str(file), "sha256": hashlib.sha256(content).hexdigest()}
    return GivenWeights(tensors=tensors, source=source, num_heads=None)


def _of_run(path: Path) -> GivenWeights:
    """The best checkpoint of a run, compared with its checksum."""
    run = open_run(path)
    step, folder = run.best_step, path / CHECKPOINTS
    model = run.load_model(step)
    digest = read_state(folder, step)["files"][MODEL]
    source = {"file": str(step_folder(folder, step) / MODEL), "sha256": digest, "step": step}
    heads = run.config.model.settings["num_heads"]
    return GivenWeights(tensors=model.state_dict(), source=source, num_heads=heads)


def describe_start(facts: Mapping[str, Any]) -> str:
    """What became of given weights, in one line."""
    new, left_out = facts["new"], facts["left_out"]
    rest = [name for name in new if name not in HEAD]
    parts = [f"{facts['taken']} weights of {facts['file']}"]
    if len(rest) < len(new):
        parts.append("a new head")
    if rest:
        parts.append(f"{len(rest)} more that are new: {listed(rest)}")
    if facts["grids"]:
        before, after = facts["grids"]
        parts.append(f"positions from {before} x {before} to {after} x {after}")
    if left_out:
        parts.append(f"{len(left_out)} left out: {listed(left_out)}")
    return f"starting from {'; '.join(parts)}."


def start_facts(given: GivenWeights, fitted: Fitted) -> dict[str, Any]:
    """The same as plain data, for the run's folder and its record."""
    return {
        **given.source,
        "taken": len(fitted.weights),
        "new": list(fitted.new),
        "left_out": list(fitted.left_out),
        "grids": fitted.grids,
    }


def write_start(folder: Path, facts: Mapping[str, Any]) -> None:
    """Keep what a run started from, for it is not read again when the run goes on."""
    if facts:
        replace_file(folder / FILE, json_text(facts, indent=1).encode())


def read_start(folder: Path) -> dict[str, Any]:
    """What a run started from; nothing if from fresh weights."""
    file = folder / FILE
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
