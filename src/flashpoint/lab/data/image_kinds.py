"""The kinds of images that a config or the command line can name, and how each is opened.

A new kind is a row of ``KINDS``; what it opens is a ``Source`` (``image_source.py``).
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flashpoint.errors import InputError, hint, show_names
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.huggingface import open_huggingface
from flashpoint.lab.data.image_folder import has_splits, open_folder, refuse_half_split
from flashpoint.lab.data.image_source import Source
from flashpoint.lab.data.places import (
    FIT,
    HELD_OUT,
    PARTS,
    at_home,
    folder_and_split,
    list_folder,
)
from flashpoint.lab.data.shards import open_shards
from flashpoint.lab.data.small_sets import PREPARED, open_digits, open_prepared


class Kind(NamedTuple):
    """Images by the word that stands before the colon.

    Attributes:
        form: as a user writes it.
        open: takes what stands behind the colon, a split, and a file that names the classes.
        has_images: whether nothing else can be there.
    """

    form: str
    open: Callable[[str, str, Path | None], Source]
    has_images: bool = True


def _open_digits(_: str, split: str, labels: Path | None) -> Source:
    return open_digits(split, labels)


def _open_prepared(kind: str, place: str, split: str, labels: Path | None) -> Source:
    return open_prepared(kind, *folder_and_split(place, split), labels)


def _open_huggingface(place: str, split: str, labels: Path | None) -> Source:
    folder, split = folder_and_split(place, split)
    return open_huggingface(_existing(folder, f"hf:{place}"), split, labels)


KINDS = {
    "digits": Kind("digits", _open_digits),
    **{name: Kind(f"{name}:DIR", partial(_open_prepared, name)) for name in PREPARED},
    "shards": Kind("shards:PATTERN", open_shards),
    "hf": Kind("hf:DIR", _open_huggingface, has_images=False),
}
"""All but folders, which have no word."""


def open_source(text: str, split: str, labels: str | Path | None = None) -> Source:
    """Open what a text names.

    | text | what |
    |---|---|
    | ``digits`` | scikit-learn's digits, 8 x 8, in memory |
    | ``cifar10:DIR``, ``mnist:DIR``, ``fashion-mnist:DIR`` | by ``flashpoint data prepare`` |
    | ``DIR`` | class folders with images, or folders train and val with class folders |
    | ``shards:PATTERN`` | WebDataset tar files: ``{000..127}``, ``{a,b}``, ``*``, or a folder |
    | ``hf:DIR`` | a Hugging Face dataset, written by ``save_to_disk`` |

    Behind the folder of a prepared set or a Hugging Face dataset ``:NAME`` may name a split,
    which then counts and not the argument. A prepared set and an image folder have ``:fit`` and
    ``:held-out``, parts of their training split.

    Args:
        text: as above.
        split: "train" or "validation" (which may be stored as val, valid or test), or a name.
        labels: a file with one class a line, in the order of the labels: all class folders or
            shards' labels, or other names for the classes that there are.

    Example:
        >>> open_source("digits", "validation").num_samples
        360
    """
    class_list = Path(labels) if labels is not None else None
    if _is_folder(text):
        folder, part = _folder_and_part(text)
        return open_folder(_existing(folder, text), part or split, class_list)
    word, _, place = text.partition(":")
    kind = KINDS[word]
    if not place and kind.form != word:
        raise InputError(f"{text!r} needs a place: {kind.form}.")
    return kind.open(place, split, class_list)


def open_sources(config: DataConfig) -> tuple[Source, Source]:
    """The training and the validation source of a config, if they fit together.

    They must have the same classes in the same order, and share no folder, file or shard. A folder
    that is both and has no splits is split (``split_flat``).
    """
    config = split_flat(config)
    train = open_source(config.train, "train", config.labels)
    validation = open_source(config.validation, "validation", config.labels)
    _check_apart(train, validation, config)
    pairs = zip(train.class_names, validation.class_names, strict=False)
    differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if differing or validation.num_classes > train.num_classes:
        detail = f", first {differing[0]!r} and {differing[1]!r}" if differing else ""
        raise InputError(
            f"the classes of {train.name} ({train.num_classes}) and {validation.name} "
            f"({validation.num_classes}) differ{detail}. Give the order of all classes in a file: "
            "data.labels in a config, --classes for a probe."
        )
    return train, validation


def split_flat(config: DataConfig) -> DataConfig:
    """The config with two parts of a folder, if it trains on and validates one without splits."""
    folder = _flat_folder(config.train)
    if folder is None or _flat_folder(config.validation) != folder:
        return config
    refuse_half_split(at_home(config.train))
    train, validation = (text.rstrip("/") for text in (config.train, config.validation))
    return replace(config, train=f"{train}:{FIT}", validation=f"{validation}:{HELD_OUT}")


def is_held_out_of(part: str, where: str) -> bool:
    """Whether the first text names the part that ``split_flat`` holds out of a folder."""
    folder, name = _folder_and_part(part)
    flat = _flat_folder(where)
    return flat is not None and name == HELD_OUT and os.path.realpath(folder) == flat


def remark_on_flat(config: DataConfig, train: Source, validation: Source) -> str:
    """What to say where ``split_flat`` split a folder, or nothing.

    Args:
        config: as the user wrote it.
        train, validation: of ``open_sources``.
    """
    if split_flat(config) == config:
        return ""
    total = train.num_samples + validation.num_samples
    counts = train.label_counts + validation.label_counts
    alone = [name for name, count in zip(train.class_names, counts, strict=True) if count == 1]
    rest = f" Classes with one image, which is trained on: {show_names(alone)}." if alone else ""
    return (
        f"{config.train} has no folders train and val: {validation.num_samples:,} of its "
        f"{total:,} images are held out for validation, class by class, the same ones every "
        f"time.{rest}"
    )


def names_images(text: str) -> bool:
    """Whether a text names images by its first word; folders and ``hf:`` may hold anything.

    Example:
        >>> names_images("shards:x.tar"), names_images("hf:DIR")
        (True, False)
    """
    kind = KINDS.get(text.partition(":")[0])
    return kind is not None and kind.has_images


def _check_apart(train: Source, validation: Source, config: DataConfig) -> None:
    """Refuse images that are both trained on and validated."""
    shared = sorted(set(train.places).intersection(validation.places))
    if not shared:
        return
    both = f"data.train={config.train!r} and data.validation={config.validation!r}"
    if set(train.places) == set(validation.places):
        raise InputError(
            f"{both} are the same images: there are no splits in {shared[0]}. "
            "Give each a place of its own."
        )
    raise InputError(
        f"{both} share {len(shared)} of {len(set(validation.places))} shards of the latter, "
        f"first {shared[0]}. Leave them out of one."
    )


def _is_folder(text: str) -> bool:
    """Whether a text has no word of a kind in front."""
    word, colon, _ = text.partition(":")
    return word not in KINDS or bool(colon and KINDS[word].form == word)


def _folder_and_part(text: str) -> tuple[Path, str]:
    """A folder, and which part of it the text names; empty for none."""
    folder, part = folder_and_split(text, "")
    return (folder, part) if part in PARTS else (at_home(text), "")


def _flat_folder(text: str) -> str | None:
    """The resolved path of a folder without splits; None for anything else."""
    if not _is_folder(text) or not text.strip() or not os.path.isdir(at_home(text)):
        return None
    return None if has_splits(at_home(text)) else os.path.realpath(at_home(text))


def _existing(folder: Path, text: str) -> Path:
    """The folder, if it is one."""
    if os.path.isfile(folder):
        raise InputError(f"{text!r} names a file. Give the folder that holds the images.")
    if not os.path.isdir(folder):
        forms = ", ".join(kind.form for kind in KINDS.values())
        near = hint(text.partition(":")[0], KINDS) or hint(folder.name, _folders_beside(folder))
        raise InputError(
            f"{text!r} is neither a folder nor a known set. "
            f"{near}Known: {forms}, and a folder of class folders."
        )
    return folder


def _folders_beside(folder: Path) -> list[str]:
    """Names that may have been meant."""
    can_be_read = os.path.isdir(folder.parent) and os.access(folder.parent, os.R_OK)
    return list_folder(folder.parent).folders if can_be_read else []
