"""Files that are there whole or not at all, or free to be removed."""

import json
import math
import os
from collections.abc import Callable, Mapping
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
