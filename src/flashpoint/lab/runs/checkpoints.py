"""The folder of a run's checkpoints, as far as it needs no torch.

``checkpoints/step_N/`` holds the weights, the optimizer's state (safetensors, no pickle) and
state.json, written last, with the SHA-256 of the others and of itself. Weights and state are one
file each, or a few of every process that FSDP spread them over. A checkpoint is made under
a temporary name, brought to disk, and renamed: whoever is killed meanwhile leaves the old ones.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from flashpoint.errors import InputError
from flashpoint.files import json_text
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.names import SAVED, STATE
from flashpoint.lab.runs.stored import exists, parse_json, read_bytes, read_json, unreadable
from flashpoint.lab.runs.writing import sync_folder, write, write_json, writing

TEMPORARY = ".unfinished_"
DAMAGED = "damaged_"


class DamagedError(Exception):
    """A checkpoint is not what was written: a checksum fails, or a file is missing.

    One that cannot be read now is not damaged: a disk may come back.
    """


class StateFile(TypedDict):
    """What state.json holds."""

    step: int
    state: dict[str, Any]
    files: dict[str, str]
    digest: str


def save(
    folder: Path, step: int, parts: Mapping[str, Callable[[], bytes]], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint under ``folder``; all of it or nothing is there afterwards.

    Args:
        folder: of all checkpoints.
        step: updates done.
        parts: what gives the content of each file, by its name; called one after the other.
        state: what the loop noted, as plain data.
    """
    with writing(step_folder(folder, step)):
        temporary = begin(folder, step)
        try:
            digests = {name: write(temporary / name, make()) for name, make in parts.items()}
            return commit(folder, step, digests, state)
        finally:
            remove(temporary)


def begin(folder: Path, step: int) -> Path:
    """Make an empty folder for the files of a checkpoint; ``commit`` gives it its name."""
    temporary = temporary_folder(folder, step)
    with writing(temporary):
        folder.mkdir(parents=True, exist_ok=True)
        remove(temporary)
        temporary.mkdir()
    return temporary


def commit(folder: Path, step: int, digests: Mapping[str, str], state: Mapping[str, Any]) -> Path:
    """Make a checkpoint of what was written since ``begin``, by the SHA-256 of each file."""
    final, temporary = step_folder(folder, step), temporary_folder(folder, step)
    for name in digests:
        if not exists(temporary / name):
            raise RunError(
                f"{name} of step {step} was written, and is not in {temporary}. All processes "
                "must see the same folder: pass an --out that all nodes share."
            )
    with writing(final):
        write(temporary / STATE, _seal({"step": step, "state": state, "files": dict(digests)}))
        sync_folder(temporary)
        if os.path.lexists(final):  # only a damaged one can be in the way
            set_aside(final)
        temporary.rename(final)
        sync_folder(folder)
    return final


def digest_of(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_part(folder: Path, step: int, name: str) -> bytes:
    """A file of a checkpoint; DamagedError if it is not whole."""
    expected = read_state(folder, step)["files"].get(name)
    content = _read(step_folder(folder, step) / name)
    if hashlib.sha256(content).hexdigest() != expected:
        raise DamagedError(f"{name} ({len(content)} bytes) does not match its checksum")
    return content


def read_state(folder: Path, step: int) -> StateFile:
    """What state.json says; DamagedError if it is not whole."""
    text = _read(step_folder(folder, step) / STATE)
    try:
        content = parse_json(text.decode("utf-8", errors="replace"), StateFile, STATE)
    except InputError as error:
        raise DamagedError(str(error).rstrip(".")) from error
    rest = {name: value for name, value in content.items() if name != "digest"}
    whole = content["digest"] == hashlib.sha256(_encode(rest)).hexdigest()
    if not whole or content["step"] != step:
        raise DamagedError(f"{STATE} does not match its checksum")
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


class _Saved(TypedDict):
    """What saved.json holds."""

    step: int


def note_saved(run: Path, step: int) -> None:
    """Write beside the checkpoints which one is the newest: their disk may be another."""
    write_json(run / SAVED, {"step": step})


def noted_step(run: Path) -> int:
    """The step of the last checkpoint that a run saved, still there or not; 0 before any."""
    file = run / SAVED
    advice = "Remove it, then give the same command again."
    return read_json(file, _Saved, advice)["step"] if exists(file) else 0


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step_{step}"


def temporary_folder(folder: Path, step: int) -> Path:
    """Where it lies until it is whole."""
    return folder / f"{TEMPORARY}{step_folder(folder, step).name}"


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


def _seal(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(_encode(content)).hexdigest()
    return json_text({**content, "digest": digest}, indent=1).encode()


def _encode(content: Mapping[str, Any]) -> bytes:
    """What the digest is of: as the file is read back, where NaN and infinities are null."""
    return json.dumps(json.loads(json_text(content)), sort_keys=True).encode()
