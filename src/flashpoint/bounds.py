"""How large the numbers of a config may be, declared with its fields and checked in one place.

A field's type says it: ``width: Annotated[int, Bounds(1, 65_536)]``. The dataclass calls
``check_bounds(self)`` when it is made.
"""

import sys
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union

from flashpoint.errors import InputError, describe


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most that a number may be.

    Attributes:
        low, high: both are allowed,
        above: unless this is set: then the number must be more than ``low``;
        below: likewise, less than ``high``.

    Example:
        >>> 0.0 in Bounds(0.0, 1.0), 0.0 in Bounds(0.0, 1.0, above=True)
        (True, False)
        >>> str(Bounds(0.0, 1.0, below=True))
        'from 0 to below 1'
    """

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        fits = self.low < value if self.above else self.low <= value
        return fits and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        low, high = _number(self.low), _number(self.high)
        if self.above:
            return f"above {low}, {'below' if self.below else 'at most'} {high}"
        return f"from {low} to {'below ' if self.below else ''}{high}"


Width: TypeAlias = Annotated[int, Bounds(1, 65_536)]
Depth: TypeAlias = Annotated[int, Bounds(1, 256)]
Slots: TypeAlias = Annotated[int, Bounds(1, 2**20)]
"""A model's sizes may be far beyond any that was trained, and near what can be counted."""


def check_bounds(record: object, path: str = "") -> None:
    """Refuse numbers of a dataclass that are out of the bounds in its fields' types.

    Null and words are passed over where the type allows them beside numbers. NumPy's numbers
    become Python's, so that the record can be written to a file.

    Args:
        record: made of fields, of which those with ``Bounds`` are checked.
        path: what stands before a field's name in messages, as "data.".
    """
    for name, (wanted, bounds) in bounded_fields(type(record)).items():
        value = getattr(record, name)
        kinds = typing.get_args(wanted) if _is_union(wanted) else (wanted,)
        has_words = any(typing.get_origin(kind) is Literal for kind in kinds)
        if (value is None and type(None) in kinds) or (isinstance(value, str) and has_words):
            continue
        numbers = {name: value}
        takes_tuple = any(typing.get_origin(kind) is tuple for kind in kinds)
        if takes_tuple and isinstance(value, tuple):
            numbers = {f"{name}[{place}]": item for place, item in enumerate(value)}
        plain = tuple(
            check_within(f"{path}{where}", number, bounds, is_whole=int in kinds)
            for where, number in numbers.items()
        )
        object.__setattr__(record, name, plain if isinstance(value, tuple) else plain[0])


def check_within(name: str, value: Any, bounds: Bounds, *, is_whole: bool = False) -> int | float:
    """A number within the bounds, as Python's."""
    number = plain_number(value)
    if number is None or (is_whole and not isinstance(number, int)) or number not in bounds:
        kind = "a whole number" if is_whole else "a number"
        raise InputError(f"{name}={describe(value)} must be {kind} {bounds}.")
    return number


def plain_number(value: Any) -> int | float | None:
    """A real number of Python or NumPy, as Python's; None for all else, True and False too.

    Example:
        >>> import numpy as np
        >>> plain_number(np.float32(0.5)), plain_number(np.int64(3)), plain_number(True)
        (0.5, 3, None)
    """
    if type(value) in (int, float):
        return value
    numpy = sys.modules.get("numpy")  # whoever has its numbers has loaded it
    if numpy is not None and isinstance(value, numpy.generic):
        kind = value.dtype.kind
        return int(value) if kind in "iu" else float(value) if kind == "f" else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@cache
def bounded_fields(record: type) -> dict[str, tuple[Any, Bounds]]:
    """The fields of a dataclass that declare bounds: their types and bounds by name."""
    found: dict[str, tuple[Any, Bounds]] = {}
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Bounds):
                found[name] = typing.get_args(hint)[0], mark
    return found


def _is_union(wanted: Any) -> bool:
    return typing.get_origin(wanted) in (Union, types.UnionType)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
