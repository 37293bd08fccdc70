"""Hugging Face datasets on disk (``save_to_disk``), with an image and a label column."""

import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from flashpoint.errors import InputError, reason, require
from flashpoint.lab.data.decode import decode, read_image_file
from flashpoint.lab.data.image_source import Integers, Source
from flashpoint.lab.data.labels import as_labels, read_class_list, rename_classes
from flashpoint.lab.data.places import SPLIT_NAMES, MissingSplitError, pick_split
from flashpoint.lab.runs.stored import open_plain, read_json

if TYPE_CHECKING:
    from PIL.Image import Image


SPLITS, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"


def require_datasets() -> ModuleType:
    """The library, or a line that says what to install."""
    return require("datasets", "hf:", extra="hf")


class _Splits(TypedDict):
    """The file of a DatasetDict: a folder for each split."""

    splits: list[str]


class _DataFile(TypedDict):
    """Some rows."""

    filename: str


class _State(TypedDict):
    """What is read of a dataset's state."""

    _data_files: list[_DataFile]


class HuggingFaceSource(Source):
    """One split of a dataset on disk; images are decoded here, not by the library."""

    def __init__(self, name: str, dataset: Any, labels: Path | None = None) -> None:
        image, label = _columns(name, dataset.features)
        targets = _labels(name, dataset, label)
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
            content = read_image_file(Path(row.get("path") or ""), name)
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


def _labels(name: str, dataset: Any, label: str) -> Integers:
    """The labels, as they are stored."""
    column = dataset.with_format("arrow", columns=[label])[:].column(label)
    if column.null_count:
        raise InputError(
            f"{name} has {column.null_count} samples without a label. Take a split that is "
            "labeled."
        )
    return as_labels(column.to_numpy(), name)


def open_huggingface(folder: Path, split: str, labels: Path | None = None) -> HuggingFaceSource:
    """A dataset that ``save_to_disk`` wrote; of a DatasetDict, one of its splits."""
    dataset, name = load_split(folder, split)
    source = HuggingFaceSource(name, dataset, labels)
    chosen = name.removeprefix(f"hf:{folder}").removeprefix(":")
    source.places = (os.path.realpath(folder / chosen),)  # a split is a folder of its own
    return source


def _load(folder: Path) -> Any:
    """A dataset without splits; its files are looked at before the library trusts them."""
    library = require_datasets()
    try:
        stored = read_json(folder / STATE, _State)["_data_files"]
        read_json(folder / INFO, dict[str, Any])
        for file in stored:
            open_plain(folder / file["filename"]).close()
        if not stored:
            raise InputError("it has no rows.")
        # A format that was saved with it may hide columns.
        return library.Dataset.load_from_disk(str(folder)).with_format(None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} is no Hugging Face dataset on disk: {reason(error)}. Write it with "
            "dataset.save_to_disk(...)."
        ) from error


def load_split(folder: Path, split: str) -> tuple[Any, str]:
    """One split of a dataset on disk, and what to call it; other splits may be broken."""
    name = f"hf:{folder}"
    if os.path.exists(folder / SPLITS):
        listed = read_json(
            folder / SPLITS, _Splits, "Write it with DatasetDict.save_to_disk(...)."
        )
        chosen = pick_split(listed["splits"], split, name)
        return _load(folder / chosen), f"{name}:{chosen}"
    loaded = _load(folder)
    if split not in SPLIT_NAMES:
        raise MissingSplitError(f"{name} is one dataset without splits. Leave {split!r} out.")
    return loaded, name
