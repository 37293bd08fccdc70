"""Files that name the classes, one a line, in the order of the labels.

A line is the class's name; if it begins with a WordNet id, as "n01440764 tench", the id is the
name. Ids are what ImageNet-21k and ImageNet-1k are matched by.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from flashpoint.errors import InputError, describe
from flashpoint.lab.runs.stored import read_text

WORDNET_ID = re.compile(r"(?<![A-Za-z0-9])n\d{8}(?!\d)")

BYTE_ORDER_MARK = "\ufeff"  # which editors may put first


def read_class_list(file: Path) -> list[str]:
    """The names in a file."""
    return list(_read_lines(file))


def rename_classes(names: Sequence[str], file: Path, whose: str) -> list[str]:
    """Other names, from a file, for classes whose order stands; InputError if they do not fit."""
    lines = _read_lines(file)
    others = list(lines)
    if len(others) != len(names):
        raise InputError(
            f"the class list {file} has {len(others)} classes, {whose} {len(names)}. Give one a "
            "line, in the order of the labels."
        )
    for label, name in enumerate(names):
        if name in others and others[label] != name:
            raise InputError(
                f"the class list {file} has {describe(name)} in line {lines[name]}, but it is "
                f"label {label} of {whose}, counted from 0. Give them in the order of the labels."
            )
    return others


def _read_lines(file: Path) -> dict[str, int]:
    """The names in a file, and the line of each, counted from 1 with the empty ones."""
    try:
        text = read_text(file)
    except InputError as error:
        raise InputError(f"the class list {error}") from error
    lines: dict[str, int] = {}
    for number, line in enumerate(text.removeprefix(BYTE_ORDER_MARK).splitlines(), start=1):
        name = _name(line.strip())
        if name in lines:
            raise InputError(
                f"the class list {file} has {describe(name)} more than once: in lines "
                f"{lines[name]} and {number}. Give every class one line."
            )
        if name:
            lines[name] = number
    return lines


def _name(line: str) -> str:
    match = WORDNET_ID.match(line)
    return match[0] if match else line
