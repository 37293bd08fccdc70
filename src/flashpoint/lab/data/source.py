"""What every source of images offers: samples by number, labels, names, an order by seed."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from flashpoint.errors import InputError, hint, show_names

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

T = TypeVar("T")

Integers = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

TEST = "test"
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", TEST),
}


class BrokenImageError(Exception):
    """An image cannot be read; loaders replace and count it."""


class MissingSplitError(InputError):
    """There is no such split; one that is there and cannot be read is another InputError."""


class Source(ABC):
    """Labelled images that can be read in any order, by any process.

    Attributes:
        name: what messages call it; the split that was taken, where there were several, stands at
            its end.
        class_names: one for each label; WordNet ids where the source knows them.
        labels: the label of every sample, int64 [N].
        is_small: a set that is kept on the device unless the config says otherwise.
        damage: what could not be read when the source was opened, one line each.
        lost_share: an estimate of the share of samples lost by it.
        places: resolved paths of what samples are read from; sources that share one share images.
    """

    is_small: bool = False
    damage: Sequence[str] = ()
    lost_share: float = 0.0
    places: Sequence[str] = ()

    def __init__(self, name: str, class_names: Sequence[str], labels: Integers) -> None:
        self.name = name
        self.class_names = tuple(class_names)
        self.labels = labels
        if not len(labels):
            raise InputError(f"{name} holds no images.")
        if len(self.class_names) < 2:
            raise InputError(
                f"{name} has {len(self.class_names)} class ({', '.join(self.class_names)}); a "
                "classifier needs at least 2. Is it the folder above the class folders?"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.class_names):
            raise InputError(
                f"{name} has labels from {low} to {high}, but {len(self.class_names)} classes: "
                f"labels must lie in [0, {len(self.class_names) - 1}]."
            )

    @property
    def num_samples(self) -> int:
        """How many images there are."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes there are, with those that have no image here."""
        return len(self.class_names)

    @cached_property
    def label_counts(self) -> Integers:
        """How many images each class has."""
        return np.bincount(self.labels, minlength=self.num_classes)

    @abstractmethod
    def read(self, index: int) -> tuple["Image", int]:
        """The image as it is stored, decoded, and its label; BrokenImageError if unreadable."""

    @abstractmethod
    def describe(self, index: int) -> str:
        """Where a sample lies: a path, or a place in a file."""

    def resident(self) -> "tuple[Tensor, Tensor] | None":
        """All images uint8 [N, C, H, W] and labels int64 [N], if they are in memory already."""
        return None

    def shuffle(self, rng: np.random.Generator) -> Integers:
        """A random order of all samples, such that reading in this order is quick."""
        return rng.permutation(self.num_samples)


class Subset(Source):
    """Some samples of a source, in the order given; its damage is theirs.

    Example:
        >>> from flashpoint.lab.data.sources import open_source
        >>> digits = open_source("digits", "train")
        >>> Subset(digits, [5, 3]).labels.tolist() == digits.labels[[5, 3]].tolist()
        True
    """

    def __init__(self, source: Source, indices: Sequence[int] | Integers) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)
        labels = source.labels[self.indices]
        super().__init__(f"{len(labels)} of {source.name}", source.class_names, labels)
        self.is_small = source.is_small
        self.damage, self.lost_share = source.damage, source.lost_share

    def read(self, index: int) -> tuple["Image", int]:
        """As the whole source reads it."""
        return self.source.read(int(self.indices[index]))

    def describe(self, index: int) -> str:
        """As the whole source describes it."""
        return self.source.describe(int(self.indices[index]))

    def resident(self) -> "tuple[Tensor, Tensor] | None":
        """The chosen part of what is in memory."""
        import torch

        whole = self.source.resident()
        if whole is None:
            return None
        chosen = torch.from_numpy(self.indices)
        return whole[0][chosen], whole[1][chosen]


def remark_on_test(where: str, name: str) -> str:
    """What to say where data were to be validated on and their test split was taken, or nothing.

    Args:
        where: as the user wrote it.
        name: of the source that was opened, with its split at the end.

    Example:
        >>> remark_on_test("hf:x:test", "hf:x:test")
        ''
        >>> remark_on_test("hf:x", "hf:x:test")
        'hf:x has no validation split: validation, and what is best by it, is of its test split.'
    """
    asked, taken = (
        re.split(r"[:/]", text.rstrip("/").removesuffix(".jsonl"))[-1] for text in (where, name)
    )
    if taken != TEST or asked == TEST:
        return ""
    return (
        f"{where} has no validation split: validation, and what is best by it, is of its "
        f"{TEST} split."
    )


def open_splits(
    splits: Sequence[str], open_split: Callable[[str], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Those of some splits that are there, and for each that cannot be opened, why.

    A reason that two splits share is given once. InputError if no split is there, or all that are
    have the same reason.
    """
    opened: dict[str, T] = {}
    broken: dict[str, str] = {}
    refused: InputError | None = None
    for split in splits:
        try:
            opened[split] = open_split(split)
        except MissingSplitError as error:
            refused = refused or error
        except InputError as error:
            if str(error) not in broken.values():
                broken[split] = str(error)
                refused = error
    if not opened and len(broken) < 2 and refused is not None:
        raise refused
    return opened, broken


def pick_split(available: Collection[str], split: str, where: str) -> str:
    """The name under which a source holds a split: "val" or "test" may be the validation.

    Example:
        >>> pick_split(["train", "test"], "validation", "hf:pets")
        'test'
    """
    for name in (split, *SPLIT_NAMES.get(split, ())):
        if name in available:
            return name
    raise MissingSplitError(
        f"{where} has no split {split!r}. {hint(split, available)}It has: {show_names(available)}."
    )
