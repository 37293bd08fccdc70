"""Folders as users name them, and files below: each folder once, whatever links lead to it.

A link to a file is followed. A link to a folder is followed if that lies outside the set and is
reached once: else images of one class would count for another, and a link to a folder above would
have no end. Such a link is refused, with its name.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flashpoint.errors import InputError


def at_home(text: str) -> Path:
    """A place as a user writes it; the ~ of a user who is unknown stays as it is.

    Raises:
        InputError: it is empty, which would be the current folder.
    """
    if not text.strip():
        raise InputError(
            f"the place of data is empty: {text!r}. Name a folder or a file; '.' is the current "
            "folder."
        )
    return Path(os.path.expanduser(text))


class Entries(NamedTuple):
    """Names in a folder, each sorted; ``files`` has everything that is no folder."""

    folders: list[str]
    files: list[str]


def list_folder(folder: Path) -> Entries:
    """What a folder holds; InputError if it cannot be read."""
    found = Entries([], [])
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                (found.folders if _is_folder(entry) else found.files).append(entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from error
    return Entries(sorted(found.folders), sorted(found.files))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


class FolderWalk:
    """Walks below folders of one root, and refuses what it meets again."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._met = {self._root: root}

    def files_below(self, folder: Path) -> Iterator[tuple[Path, list[str]]]:
        """Every folder from this one down, sorted by its path, with the names of its files."""
        places = [folder]
        found: list[tuple[str, Path, list[str]]] = []
        while places:
            place = places.pop()
            self._meet(place)
            folders, files = list_folder(place)
            places += [place / name for name in folders]
            found.append((str(place), place, files))
        return ((place, files) for _, place, files in sorted(found))

    def _meet(self, place: Path) -> None:
        """Note a folder; InputError if it was met, or holds the root."""
        real = os.path.realpath(place)
        before = self._met.setdefault(real, place)
        if before is place and not self._root.startswith(os.path.join(real, "")):
            return
        link, other = place, before
        if before.is_symlink() and not place.is_symlink():
            link, other = before, place
        raise InputError(
            f"{link} leads to {real}, which "
            + ("holds the whole set" if before is place else f"is also reached as {other}")
            + ": its images would count twice. Remove the link, or link to single files."
        )
