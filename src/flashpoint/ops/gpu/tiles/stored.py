"""Measured tiles in the user's cache folder: a JSON file that any process may read and replace.

The file is ``tiles.json`` in the folder ``FLASHPOINT_CACHE``, by default ``flashpoint`` in
``XDG_CACHE_HOME`` or ``~/.cache``. It only makes calls faster: whatever is wrong with it is said
once, as a warning, and calls go on without it.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from flashpoint.files import cache_folder, write_atomically

FORMAT = 1  # another one is not read: raise it when kernels change what their tiles mean

Entries = dict[str, dict[str, Any]]

_read: dict[Path, Entries] = {}
_said: set[str] = set()


def path() -> Path:
    """Where the file is, or would be."""
    return cache_folder() / "tiles.json"


def find(key: str) -> dict[str, Any] | None:
    """What is stored under a key; a process reads the file once."""
    file = path()
    if file not in _read:
        _read[file] = _load(file)
    return _read[file].get(key)


def keep(key: str, entry: dict[str, Any]) -> None:
    """Store an entry, beside what other processes have stored meanwhile."""
    file = path()
    known = _read.get(file, {})
    _read[file] = known | _load(file) | {key: entry}
    content = {"format": FORMAT, "tiles": _read[file]}
    text = json.dumps(content, indent=2, sort_keys=True)
    try:
        write_atomically(file, lambda handle: handle.write(text.encode()))
    except OSError as error:
        warn_once(f"measured tiles cannot be stored in {file}: {error.strerror}")


def forget() -> None:
    """Read files and say warnings anew."""
    _read.clear()
    _said.clear()


def warn_once(message: str) -> None:
    """Tell what is wrong with the store, the first time."""
    if message not in _said:
        _said.add(message)
        warnings.warn(f"flashpoint: {message}; calls go on without it.", stacklevel=2)


def _load(file: Path) -> Entries:
    """All entries of a file, none if there is no file or a broken one."""
    try:
        content = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        warn_once(f"measured tiles in {file} cannot be read: {reason}")
        return {}
    is_ours = isinstance(content, dict) and isinstance(content.get("tiles"), dict)
    if not is_ours or content.get("format") != FORMAT:
        warn_once(f"{file} holds no measured tiles of format {FORMAT}")
        return {}
    return {key: entry for key, entry in content["tiles"].items() if isinstance(entry, dict)}
