"""Files that are there whole or not at all, held by one process, or free to be removed."""

import fcntl
import json
import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def cache_folder() -> Path:
    """``FLASHPOINT_CACHE``, by default ``flashpoint`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    What is kept there makes things faster; it may be removed at any time.
    """
    if folder := os.environ.get("FLASHPOINT_CACHE"):
        return Path(folder)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(caches) / "flashpoint"


def json_text(content: Any, indent: int | None = None) -> str:
    """Plain data as JSON that any reader takes: NaN and infinities become null.

    Example:
        >>> json_text({"loss": float("nan"), "steps": [1, 2.5]})
        '{"loss": null, "steps": [1, 2.5]}'
    """
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return value


def write_atomically(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under another name, then rename it: nobody reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.parent / f".{file.name}.{os.getpid()}.part"
    try:
        with temporary.open("wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


_own: set[Path] = set()
"""Files that this process holds."""


class InUse(Exception):
    """Another process holds a lock; the message is its number."""


@contextmanager
def locked(file: Path) -> Generator[None]:
    """Hold a file; InUse while another process, here or below NFS, holds it.

    The lock is the kernel's and ends with its process, however that ends.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # Not flock: forked workers would inherit it, and hold it for a while after kill -9.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InUse(os.read(descriptor, 20).decode().strip()) from error
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        _own.add(file.resolve())
        try:
            yield
        finally:
            _own.discard(file.resolve())
    finally:
        os.close(descriptor)


def is_held(file: Path) -> bool:
    """Whether a process, this one too, holds a file by ``locked``; nothing is written."""
    if file.resolve() in _own:  # to open and close it here would end the lock
        return True
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
