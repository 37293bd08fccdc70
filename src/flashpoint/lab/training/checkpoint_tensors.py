"""Checkpoints of a run that trains: tensors to files and back; the files are lab/runs' matter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from flashpoint.lab.runs import checkpoints
from flashpoint.lab.runs.checkpoints import DamagedError, saved_steps, set_aside, step_folder
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.names import MODEL, OPTIMIZER

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A run at one step.

    Attributes:
        step: updates done.
        model, optimizer: tensors by name.
        state: what the loop noted, as plain data.
        is_left: whether tensors lie on disk in shards, and were only compared with checksums.
    """

    step: int
    model: Tensors
    optimizer: Tensors
    state: Mapping[str, Any]
    is_left: bool = False


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint under ``folder``; all of it or nothing is there afterwards."""
    parts = {MODEL: checkpoint.model, OPTIMIZER: checkpoint.optimizer}
    contents = {name: _encoder(tensors) for name, tensors in parts.items()}
    return checkpoints.save(folder, checkpoint.step, contents, checkpoint.state)


def _encoder(tensors: Tensors) -> Callable[[], bytes]:
    return lambda: safetensors.torch.save(_apart(tensors))


def _apart(tensors: Tensors) -> dict[str, Tensor]:
    """The same tensors, of which no two share memory: weights with two names are stored twice."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        is_shared = place in seen and tensor.numel() > 0
        found[name] = tensor.clone() if is_shared else tensor.contiguous()
        seen.add(place)
    return found


def load(folder: Path, step: int, *, leave_shards: bool = False) -> Checkpoint:
    """Read a checkpoint and compare it with its checksums; shards may be left where they are.

    Raises:
        DamagedError: it differs.
        RunError: it cannot be read, which says nothing about it.
    """
    noted = checkpoints.read_state(folder, step)
    if leave_shards and MODEL not in noted["files"]:
        _check_shards(folder, step)
        return Checkpoint(step=step, model={}, optimizer={}, state=noted["state"], is_left=True)
    return Checkpoint(
        step=step,
        model=load_tensors(folder, step, MODEL),
        optimizer=load_tensors(folder, step, OPTIMIZER),
        state=noted["state"],
    )


def load_tensors(folder: Path, step: int, name: str) -> dict[str, Tensor]:
    """``MODEL`` or ``OPTIMIZER`` of a checkpoint; DamagedError if it is not whole."""
    if name not in checkpoints.read_state(folder, step)["files"]:
        from flashpoint.lab.training.sharded_state import read_whole

        _check_shards(folder, step)
        return read_whole(step_folder(folder, step), name)
    return safetensors.torch.load(checkpoints.read_part(folder, step, name))


def _check_shards(folder: Path, step: int) -> None:
    """Compare all files with their checksums."""
    for name in checkpoints.read_state(folder, step)["files"]:
        checkpoints.read_part(folder, step, name)


def latest(
    folder: Path, say: Callable[[str], None], *, leave_shards: bool = False
) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there is none at all.

    Damaged ones are reported through ``say``, and renamed once an older one was read, so that
    they are never counted among the last to keep; nothing is removed.
    """
    damaged: dict[int, str] = {}
    for step in reversed(saved_steps(folder)):
        try:
            found = load(folder, step, leave_shards=leave_shards)
        except DamagedError as error:
            damaged[step] = str(error)
            continue
        for bad, reason in damaged.items():
            aside = set_aside(step_folder(folder, bad))
            say(
                f"checkpoint step_{bad} is damaged ({reason}) and kept as {aside.name}; "
                f"going back to step_{step}."
            )
        return found
    if damaged:
        reasons = "; ".join(f"step_{step}: {reason}" for step, reason in damaged.items())
        raise RunError(
            f"none of the {len(damaged)} checkpoints in {folder} is whole ({reasons}). Restore "
            "one, or remove the run's folder to begin anew."
        )
    return None
