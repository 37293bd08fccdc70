"""Labels as numbers, and files that name the classes in their order.

Labels are checked before a class is made, or memory taken, for any of them. A class list has one
class a line. A line is the class's name; if it begins with a WordNet id, as "n01440764 tench", the
id is the name. Ids are what ImageNet-21k and ImageNet-1k are matched by.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from flashpoint.errors import InputError, describe
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.runs.stored import read_text

MAX_CLASSES = 1_000_000
"""A classifier has a name and a row of weights for each."""
MAX_DIGITS = 40

WORDNET_ID = re.compile(r"(?<![A-Za-z0-9])n\d{8}(?!\d)")

BYTE_ORDER_MARK = "\ufeff"  # which editors may put first

_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)


def as_labels(values: object, name: str) -> Integers:
    """Labels as int64 [N]; InputError unless all are whole numbers below ``MAX_CLASSES``.

    Args:
        values: an array, or a list of what a file held; nothing is rounded.
        name: of the set, for messages.

    Example:
        >>> as_labels([0, 2], "x")
        array([0, 2])
        >>> as_labels([0.5, 1.5], "x")
        Traceback (most recent call last):
        flashpoint.errors.InputError: x has the label 0.5; labels must be whole numbers in \
[0, 999999].
    """
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        array = values
    else:
        items = values.tolist() if isinstance(values, np.ndarray) else values
        items = items if isinstance(items, list) else [items]
        if others := [item for item in items if type(item) is not int]:  # True is no number
            raise _no_label(name, others[0])
        array = np.array(items, dtype=object)
    if len(array):
        _check_range(int(array.min()), int(array.max()), name)
    return array.astype(np.int64)


def number_labels(texts: Collection[str], name: str) -> dict[str, int] | None:
    """The numbers that labels are written as; None if some are no whole numbers.

    Example:
        >>> number_labels(["0", "12"], "x")
        {'0': 0, '12': 12}
        >>> number_labels(["0", "cat"], "x") is None
        True
    """
    if not all(_WHOLE.fullmatch(text) for text in texts):
        return None
    for text in texts:
        if len(text) > MAX_DIGITS:
            raise _no_label(name, text)
    numbers = {text: int(text) for text in texts}
    _check_range(min(numbers.values(), default=0), max(numbers.values(), default=0), name)
    return numbers


def name_labels(texts: Collection[str], name: str) -> list[str]:
    """Names of classes from their labels, sorted; numbers that are not whole are refused."""
    if all(_NUMBER.fullmatch(text) for text in texts):
        raise _no_label(name, next(text for text in texts if not _WHOLE.fullmatch(text)))
    return sorted(texts)


def _check_range(low: int, high: int, name: str) -> None:
    if low < 0:
        raise InputError(
            f"{name} has samples without a label: the label {low} is below 0. Take a split that "
            "is labeled."
        )
    if high >= MAX_CLASSES:
        raise _no_label(name, high)


def _no_label(name: str, label: object) -> InputError:
    return InputError(
        f"{name} has the label {describe(label)}; labels must be whole numbers in "
        f"[0, {MAX_CLASSES - 1}]."
    )


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
