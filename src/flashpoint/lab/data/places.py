"""Places as users name them: folders, what is in them, and the splits they hold."""

import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from flashpoint.errors import InputError, hint, show_names

T = TypeVar("T")

TEST = "test"
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", TEST),
}
FIT, HELD_OUT = PARTS = ("fit", "held-out")
"""Names of two parts of a prepared set's training split: settings are chosen on the second by
training on the first, and the validation and test splits stay for judging. Of an image folder too,
where they are what is trained on and validated if it has no splits."""
HELD_OUT_FOLD = 10
"""One image of ten is held out of training, 5,000 of CIFAR-10's 50,000."""


class MissingSplitError(InputError):
    """There is no such split; one that is there and cannot be read is another InputError."""


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


def folder_and_split(place: str, split: str) -> tuple[Path, str]:
    """A folder, and the split that may stand behind it after a colon instead of this one."""
    before, colon, after = place.rpartition(":")
    if colon and not os.path.exists(at_home(place)):
        return at_home(before), after
    return at_home(place), split


def pick_part(available: Collection[str], split: str, where: str) -> tuple[str, str]:
    """The stored split for a wanted one, and which part of it; the part is empty for all of it.

    Example:
        >>> pick_part(["train", "test"], "held-out", "cifar10:x")
        ('train', 'held-out')
        >>> pick_part(["train", "test"], "validation", "cifar10:x")
        ('test', '')
    """
    part = split if split in PARTS and split not in available else ""
    return pick_split(available, "train" if part else split, where), part


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
