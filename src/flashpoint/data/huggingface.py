"""Hugging Face datasets on disk (``save_to_disk``), with an image and a label column."""

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from flashpoint.data.class_list import read_class_list, rename_classes
from flashpoint.data.decode import decode
from flashpoint.data.source import SPLIT_NAMES, BrokenImageError, Source, pick_split
from flashpoint.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from PIL.Image import Image


def require_datasets() -> ModuleType:
    """The library, or a line that says what to install."""
    try:
        return import_module("datasets")
    except ImportError as error:
        raise UnsupportedError(
            "hf: needs the package datasets. Install it: pip install 'flashpoint[hf]'."
        ) from error


class HuggingFaceSource(Source):
    """One split of a dataset on disk; images are decoded here, not by the library."""

    def __init__(self, name: str, dataset: Any, labels: Path | None = None) -> None:
        image, label = _columns(name, dataset.features)
        targets = np.asarray(dataset.with_format("numpy", columns=[label])[:][label])
        targets = targets.astype(np.int64)
        if len(targets) and int(targets.min()) < 0:
            raise InputError(
                f"{name} has {int((targets < 0).sum())} samples without a label (below 0). "
                "Take a split that is labelled."
            )
        names = getattr(dataset.features[label], "names", None)
        if labels is not None:
            names = rename_classes(names, labels, name) if names else read_class_list(labels)
        if names is None:
            names = [str(number) for number in range(int(targets.max(initial=-1)) + 1)]
        super().__init__(name, names, targets)
        self._image = image
        self._rows = dataset.select_columns([image]).cast_column(
            image, require_datasets().Image(decode=False)
        )

    def read(self, index: int) -> tuple["Image", int]:
        """Decode the bytes, or the file, of a row."""
        row: dict[str, Any] = self._rows[index][self._image] or {}
        name = self.describe(index)
        content = row.get("bytes")
        if content is None:
            try:
                content = Path(row.get("path") or "").read_bytes()
            except OSError as error:
                raise BrokenImageError(f"{name}: {error}") from error
        return decode(content, name), int(self.labels[index])

    def describe(self, index: int) -> str:
        """The number of the row."""
        return f"{self.name}: row {index}"


def _columns(name: str, features: Any) -> tuple[str, str]:
    """The columns that hold the image and the label."""
    library = require_datasets()
    images = [key for key, kind in features.items() if isinstance(kind, library.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, library.ClassLabel)]
    labels = labels or [key for key in ("label", "labels") if key in features]
    if len(images) != 1 or not labels:
        raise InputError(
            f"{name} has the columns {', '.join(f'{k} ({v!r})' for k, v in features.items())}; "
            "needed are one of the type Image and one of the type ClassLabel, or named label."
        )
    return images[0], "label" if "label" in labels else labels[0]


def open_huggingface(folder: Path, split: str, labels: Path | None = None) -> HuggingFaceSource:
    """A dataset that ``save_to_disk`` wrote; of a DatasetDict, one of its splits."""
    dataset, name = load_split(folder, split)
    source = HuggingFaceSource(name, dataset, labels)
    chosen = name.removeprefix(f"hf:{folder}").removeprefix(":")
    source.places = (os.path.realpath(folder / chosen),)  # a split is a folder of its own
    return source


def load_split(folder: Path, split: str) -> tuple[Any, str]:
    """One split of a dataset on disk, and what to call it."""
    library = require_datasets()
    name = f"hf:{folder}"
    try:
        loaded: Any = library.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} is no Hugging Face dataset on disk: {str(error).splitlines()[0]} Write it "
            "with dataset.save_to_disk(...)."
        ) from error
    if isinstance(loaded, library.DatasetDict):
        chosen = pick_split([str(known) for known in loaded], split, name)
        return loaded[chosen], f"{name}:{chosen}"
    if split not in SPLIT_NAMES:
        raise InputError(f"{name} is one dataset without splits. Leave {split!r} out.")
    return loaded, name
