"""Files that name the classes, one a line, in the order of the labels.

A line is the class's name; if it begins with a WordNet id, as "n01440764 tench", the id is the
name. Ids are what ImageNet-21k and ImageNet-1k are matched by.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from flashpoint.errors import InputError

WORDNET_ID = re.compile(r"(?<![A-Za-z0-9])n\d{8}(?!\d)")


def read_class_list(file: Path) -> list[str]:
    """The names in a file."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the class list {file} cannot be read: {error}.") from error
    names = [_name(line) for line in lines if line]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the class list {file} has {twice!r} more than once.")
    return names


def rename_classes(names: Sequence[str], file: Path, whose: str) -> list[str]:
    """Other names, from a file, for classes whose order stands; InputError if they do not fit."""
    others = read_class_list(file)
    if len(others) != len(names):
        raise InputError(
            f"the class list {file} has {len(others)} classes, {whose} {len(names)}. Give one a "
            "line, in the order of the labels."
        )
    for label, name in enumerate(names):
        if name in others and others[label] != name:
            raise InputError(
                f"the class list {file} has {name!r} in line {others.index(name) + 1}, but it is "
                f"label {label} of {whose}, counted from 0. Give them in the order of the labels."
            )
    return others


def _name(line: str) -> str:
    match = WORDNET_ID.match(line)
    return match[0] if match else line
