"""Checkpoints: whole or not there.

``checkpoints/step_N/`` holds the weights, the optimizer's state (safetensors, no pickle) and
state.json, written last, with the SHA-256 of the others and of itself. A checkpoint is made under
a temporary name, brought to disk, and renamed: whoever is killed meanwhile leaves the old ones.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import safetensors.torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.runs.stored import exists, parse_json, read_bytes, unreadable
from flashpoint.lab.training.failure import RunError

Tensors = Mapping[str, Tensor]

TEMPORARY = ".unfinished_"
DAMAGED = "damaged_"
_FULL = (errno.ENOSPC, errno.EDQUOT)


_STATE = "state.json"


class DamagedError(Exception):
    """A checkpoint is not what was written: a checksum fails, or a file is missing.

    One that cannot be read now is not damaged: a disk may come back.
    """


class _State(TypedDict):
    """What state.json holds."""

    step: int
    state: dict[str, Any]
    files: dict[str, str]
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A run at one step.

    Attributes:
        step: updates done.
        model, optimizer: tensors by name.
        state: what the loop noted, as plain data.
    """

    step: int
    model: Tensors
    optimizer: Tensors
    state: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint under ``folder``; all of it or nothing is there afterwards."""
    final = step_folder(folder, checkpoint.step)
    temporary = folder / f"{TEMPORARY}{final.name}"
    with writing(final):
        folder.mkdir(parents=True, exist_ok=True)
        remove(temporary)
        try:
            temporary.mkdir()
            digests = {
                f"{name}.safetensors": write(
                    temporary / f"{name}.safetensors",
                    safetensors.torch.save({k: t.contiguous() for k, t in tensors.items()}),
                )
                for name, tensors in _parts(checkpoint).items()
            }
            content = {"step": checkpoint.step, "state": checkpoint.state, "files": digests}
            write(temporary / _STATE, _seal(content))
            sync_folder(temporary)
            if os.path.lexists(final):  # only a damaged one can be in the way
                set_aside(final)
            temporary.rename(final)
            sync_folder(folder)
        finally:
            remove(temporary)
    return final


def load(folder: Path, step: int) -> Checkpoint:
    """Read a checkpoint and compare it with its checksums.

    Raises:
        DamagedError: it differs.
        RunError: it cannot be read, which says nothing about it.
    """
    state = read_state(folder, step)
    return Checkpoint(
        step=step,
        model=load_tensors(folder, step, "model"),
        optimizer=load_tensors(folder, step, "optimizer"),
        state=state["state"],
    )


def load_tensors(folder: Path, step: int, part: str) -> dict[str, Tensor]:
    """The "model" or the "optimizer" of a checkpoint; DamagedError if it is not whole."""
    file = step_folder(folder, step) / f"{part}.safetensors"
    expected = read_state(folder, step)["files"].get(file.name)
    content = _read(file)
    if hashlib.sha256(content).hexdigest() != expected:
        raise DamagedError(f"{file.name} ({len(content)} bytes) does not match its checksum")
    return safetensors.torch.load(content)


def read_state(folder: Path, step: int) -> _State:
    """What state.json says; DamagedError if it is not whole."""
    text = _read(step_folder(folder, step) / _STATE)
    try:
        content = parse_json(text.decode("utf-8", errors="replace"), _State, _STATE)
    except InputError as error:
        raise DamagedError(str(error).rstrip(".")) from error
    rest = {name: value for name, value in content.items() if name != "digest"}
    whole = content["digest"] == hashlib.sha256(_encode(rest)).hexdigest()
    if not whole or content["step"] != step:
        raise DamagedError(f"{_STATE} does not match its checksum")
    return content


def _read(file: Path) -> bytes:
    with _reading():
        if not exists(file):
            raise DamagedError(f"{file.name} is missing")
        return read_bytes(file, max_bytes=2**63)


@contextlib.contextmanager
def _reading() -> Generator[None]:
    """Say of what cannot be read that nothing happened to it."""
    try:
        yield
    except InputError as error:
        raise RunError(
            f"{error} No checkpoint was changed or removed. Make it readable, then give the same "
            "command again."
        ) from error


def latest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there is none at all.

    Damaged ones are reported through ``say``, and renamed once an older one was read, so that
    they are never counted among the last to keep; nothing is removed.
    """
    damaged: dict[int, str] = {}
    for step in reversed(saved_steps(folder)):
        try:
            found = load(folder, step)
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


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints, in order; RunError where the folder cannot be read."""
    with _reading():
        if not exists(folder):
            return []
        try:
            names = os.listdir(folder)  # a glob leaves out what may not be read
        except OSError as error:
            raise unreadable(folder, error) from error
    steps = [name.removeprefix("step_") for name in names if name.startswith("step_")]
    return sorted(int(step) for step in steps if step.isdecimal())


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step_{step}"


def is_written(folder: Path, step: int) -> bool:
    """Whether ``save`` wrote the checkpoint of a step, by its state.json."""
    try:
        read_state(folder, step)
    except DamagedError:
        return False
    return True


def leftovers(folder: Path) -> list[Path]:
    """All that runs leave in ``folder``: checkpoints, unfinished and damaged ones."""
    steps = [step_folder(folder, step) for step in saved_steps(folder)]
    return [*steps, *folder.glob(f"{TEMPORARY}*"), *folder.glob(f"{DAMAGED}step_*")]


def prune(folder: Path, keep: Collection[int]) -> None:
    """Remove all checkpoints but these, and what a killed process left unfinished."""
    for step in saved_steps(folder):
        if step not in keep:
            remove(step_folder(folder, step))
    for unfinished in folder.glob(f"{TEMPORARY}*"):
        remove(unfinished)


def remove(path: Path) -> None:
    """Remove a folder with all it holds, if it is there; renamed first, so never half there."""
    if path.name.startswith("step_") and path.exists():
        aside = path.with_name(f"{TEMPORARY}removed_{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        path = path.rename(aside)
    shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Give a damaged checkpoint a name that is free and counts as none; gives its new path."""
    ends = itertools.chain([""], (f"_{number}" for number in itertools.count(2)))
    names = (path.with_name(f"{DAMAGED}{path.name}{end}") for end in ends)
    aside = next(name for name in names if not os.path.lexists(name))
    with writing(aside):
        return path.rename(aside)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that its old or its new content is there at any moment."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with writing(path):
        try:
            write(temporary, content)
            temporary.rename(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> str:
    """Bring bytes to disk, not only to its cache; gives their SHA-256."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def sync_folder(path: Path) -> None:
    """Bring a folder's list of names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn a failure to write into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise RunError(
                f"the disk is full: {path} was not written. What was saved before is whole. "
                "Make room, then give the same command again to go on."
            ) from error
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error


def _parts(checkpoint: Checkpoint) -> dict[str, Tensors]:
    return {"model": checkpoint.model, "optimizer": checkpoint.optimizer}


def _seal(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(_encode(content)).hexdigest()
    return json.dumps({**content, "digest": digest}, indent=1).encode()


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
