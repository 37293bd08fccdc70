"""Labels as numbers: checked before a class is made, or memory taken, for any of them."""

import re
from collections.abc import Collection

import numpy as np

from flashpoint.errors import InputError, describe
from flashpoint.lab.data.source import Integers

MAX_CLASSES = 1_000_000
"""A classifier has a name and a row of weights for each."""
MAX_DIGITS = 40

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
            "is labelled."
        )
    if high >= MAX_CLASSES:
        raise _no_label(name, high)


def _no_label(name: str, label: object) -> InputError:
    return InputError(
        f"{name} has the label {describe(label)}; labels must be whole numbers in "
        f"[0, {MAX_CLASSES - 1}]."
    )
