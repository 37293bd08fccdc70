"""A folder of class folders, in the order of torchvision's ImageFolder.

Classes are the sorted names of the folders, images the sorted paths below each. What bears an
image's suffix and is no file, as a FIFO, is an image that cannot be read.

A link to a file is followed. A link to a folder is followed if that lies outside the set and is
reached once: else images of one class would count for another, and a link to a folder above would
have no end. Such a link is refused, with its name.

A folder can be had in two parts, "fit" and "held-out". Which of a class are held out follows
from their paths alone, so that every process and every later run finds the same ones.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.data.decode import decode, read_image_file
from flashpoint.lab.data.image_source import Source
from flashpoint.lab.data.labels import read_class_list, rename_classes
from flashpoint.lab.data.places import (
    HELD_OUT,
    HELD_OUT_FOLD,
    PARTS,
    SPLIT_NAMES,
    list_folder,
    pick_split,
)

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
)


class FolderSource(Source):
    """Images in class folders; with a class list, labels follow its order.

    A list without any of the folders' names gives them others, in the order of the folders. A part
    is "fit" or "held-out"; an empty one means all images.
    """

    def __init__(self, root: Path, labels: Path | None = None, part: str = "") -> None:
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
            found = _take(_images_below(root, folder, walk), part)
            paths += found
            targets += [numbers[folder]] * len(found)
        if part and not paths:
            raise InputError(
                f"{root} has one image in every class, so that none can be held out for "
                "validation. Add images, or make folders train and val."
            )
        super().__init__(str(root), class_names, np.array(targets, dtype=np.int64))
        self.name = f"{root}:{part}" if part else str(root)
        self.root = root
        self.part = part
        real = os.path.realpath(root)
        # All of a folder shares images with each of its parts, and these none with each other.
        self.places = (f"{real}:{part}",) if part else (real, *(f"{real}:{p}" for p in PARTS))
        self._paths = np.array(paths)  # one block, so that workers share it

    def path(self, index: int) -> Path:
        """The file of a sample."""
        return self.root / os.fsdecode(bytes(self._paths[index]))

    @property
    def digest(self) -> str:
        """Differs where other files are meant, wherever the folder lies."""
        return hashlib.sha256(b"\0".join(self._paths.tolist())).hexdigest()[:16]

    def read(self, index: int) -> tuple["Image", int]:
        """Read and decode a file."""
        return decode(self.read_file(index), str(self.path(index))), int(self.labels[index])

    def read_file(self, index: int) -> bytes:
        """Read a file."""
        file = self.path(index)
        return read_image_file(file, str(file))

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


def _take(images: list[bytes], part: str) -> list[bytes]:
    """A part of a class's images, in their order; a single image is never held out."""
    if not part:
        return images
    count = max(1, round(len(images) / HELD_OUT_FOLD)) if len(images) > 1 else 0
    drawn = sorted(images, key=lambda path: hashlib.sha256(path).digest())
    held_out = set(drawn[:count])
    return [path for path in images if (path in held_out) == (part == HELD_OUT)]


def has_splits(root: Path) -> bool:
    """Whether there is a folder for training and one for validation."""
    names = set(list_folder(root).folders)
    return all(names.intersection(known) for known in SPLIT_NAMES.values())


def refuse_half_split(root: Path) -> None:
    """InputError if folders are named as splits and hold class folders, but one is missing.

    They would be taken for classes. A class of trains has images in its folder ``train``.
    """
    words = {"dev", "eval"}.union(*SPLIT_NAMES.values())
    found = [
        name
        for name in list_folder(root).folders
        if name.lower() in words and list_folder(root / name).folders
    ]
    if found:
        raise InputError(
            f"{root} has {' and '.join(found)} with class folders inside, but not both train and "
            f"val. Rename or add a folder, or pass {root / found[0]} alone: one image of "
            f"{HELD_OUT_FOLD} is then held out for validation."
        )


def find_split_folder(root: Path, split: str) -> Path:
    """The folder of a split if the root has one for training and one for validation, or itself."""
    if not has_splits(root):
        return root
    names = set(list_folder(root).folders)
    known = {split}.union(*SPLIT_NAMES.values())
    return root / pick_split(names & known, split, str(root))


def open_folder(root: Path, split: str, labels: Path | None = None) -> FolderSource:
    """The class folders of a root, or of its train and validation folders.

    "fit" and "held-out" are two parts of the images to train on, the same ones everywhere.
    """
    if split in PARTS:
        return FolderSource(find_split_folder(root, "train"), labels, split)
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
