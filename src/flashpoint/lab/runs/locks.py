"""Files that one process holds: the lock of a run's or a study's folder."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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
