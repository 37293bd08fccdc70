"""Files of runs and studies brought to disk: whole or not at all, and a failure in one line."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from flashpoint.files import json_text, write_atomically
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.locks import InUse, locked
from flashpoint.lab.runs.names import LOCK

_FULL = (errno.ENOSPC, errno.EDQUOT)
PARTS = ".*.part"
"""What a killed ``write_atomically`` leaves."""


@contextlib.contextmanager
def claim(path: Path) -> Generator[None]:
    """Hold a run's folder; refused while another process holds it."""
    if path.is_file():
        raise RunError(f"{path} is a file, and a run needs a folder. Pass another --out.")
    with contextlib.ExitStack() as stack:
        try:
            with writing(path):
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(path / LOCK))
                remove_parts(path)
        except InUse as owner:
            raise RunError(
                f"{path} is in use by process {owner}, which trains this run. Wait until it "
                "ends, or pass another --out."
            ) from owner
        yield


def remove_parts(folder: Path) -> None:
    """Remove what a killed process left of files that it was writing; the caller holds them."""
    for part in folder.glob(PARTS):
        part.unlink()


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


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that its old or its new content is there at any moment."""
    with writing(path):
        write_atomically(path, lambda handle: handle.write(content))
        sync_folder(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Plain data as a file that is there whole or not at all."""
    replace_file(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """Plain data as every JSON file of a run has it."""
    return (json_text(content, indent=1) + "\n").encode()


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
