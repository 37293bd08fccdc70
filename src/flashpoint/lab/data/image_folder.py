"""A folder of class folders, in the order of torchvision's ImageFolder.

Classes are the sorted names of the folders, images the sorted paths below each. What bears an
image's suffix and is no file, as a FIFO, is an image that cannot be read.

A link to a file is followed. A link to a folder is followed if that lies outside the set and is
reached once: else images of one class would count for another, and a link to a folder above would
have no end. Such a link is refused, with its name.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.data.decode import decode, read_image_file
from flashpoint.lab.data.image_source import Source
from flashpoint.lab.data.labels import read_class_list, rename_classes
from flashpoint.lab.data.places import SPLIT_NAMES, list_folder, pick_split

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
)


class FolderSource(Source):
    """Images in class folders; with a class list, labels follow its order.

    A list without any of the folders' names gives them others, in the order of the folders.
    """

    def __init__(self, root: Path, labels: Path | None = None) -> None:
        folders = list_folder(root).folders
        if not folders:
            raise InputError(
                f"{root} holds no class folders. An image folder has one folder a class, "
                "with its images inside."
            )
        class_names = folders if labels is None else read_class_list(labels)
        ordered = class_names
        if labels is not None and not set(folders).intersection(class_names):
            ordered, class_names = folders, rename_classes(folders, labels, str(root))
        numbers = {name: number for number, name in enumerate(ordered)}
        paths: list[bytes] = []
        targets: list[int] = []
        walk = FolderWalk(root)
        for folder in folders:
            if folder not in numbers:
                raise InputError(f"the class folder {root / folder} is not in the list {labels}.")
            found = _images_below(root, folder, walk)
            paths += found
            targets += [numbers[folder]] * len(found)
        super().__init__(str(root), class_names, np.array(targets, dtype=np.int64))
        self.root = root
        self.places = (os.path.realpath(root),)
        self._paths = np.array(paths)  # one block, so that workers share it

    def path(self, index: int) -> Path:
        """The file of a sample."""
        return self.root / os.fsdecode(bytes(self._paths[index]))

    def read(self, index: int) -> tuple["Image", int]:
        """Read and decode a file."""
        file = self.path(index)
        return decode(read_image_file(file, str(file)), str(file)), int(self.labels[index])

    def describe(self, index: int) -> str:
        """The file's path."""
        return str(self.path(index))


def _images_below(root: Path, folder: str, walk: "FolderWalk") -> list[bytes]:
    """The images of a class, as paths from the root."""
    found: list[bytes] = []
    for place, files in walk.files_below(root / folder):
        inside = os.path.relpath(place, root)
        found += [
            os.fsencode(os.path.join(inside, file))
            for file in files
            if os.path.splitext(file)[1].lower() in IMAGE_SUFFIXES
        ]
    if not found:
        raise InputError(
            f"the class folder {root / folder} holds no images "
            f"({' '.join(sorted(IMAGE_SUFFIXES))}). Remove it, or put images there."
        )
    return found


def find_split_folder(root: Path, split: str) -> Path:
    """The folder of a split if the root has one for training and one for validation, or itself."""
    names = set(list_folder(root).folders)
    if not all(names.intersection(known) for known in SPLIT_NAMES.values()):
        return root
    known = {split}.union(*SPLIT_NAMES.values())
    return root / pick_split(names & known, split, str(root))


def open_folder(root: Path, split: str, labels: Path | None = None) -> FolderSource:
    """The class folders of a root, or of its train and validation folders."""
    return FolderSource(find_split_folder(root, split), labels)


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
