"""What every source of images offers: samples by number, labels, names, an order by seed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flashpoint.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

Integers = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]


class BrokenImageError(Exception):
    """An image cannot be read; loaders replace and count it."""


class Source(ABC):
    """Labeled images that can be read in any order, by any process.

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

    def read_file(self, index: int) -> bytes | None:
        """The file of a sample as it is stored; None where samples are no files of their own."""
        return None

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
        >>> from flashpoint.lab.data.image_kinds import open_source
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

    def read_file(self, index: int) -> bytes | None:
        """As the whole source reads it."""
        return self.source.read_file(int(self.indices[index]))

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
