"""How large the numbers of a config may be, declared with its fields and checked in one place.

A field's type says it: ``width: Annotated[int, Bounds(1, 65_536)]``. The dataclass calls
``check_bounds(self)`` when it is made.
"""

import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union

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


def check_bounds(record: object, path: str = "") -> None:
    """Refuse numbers of a dataclass that are out of the bounds in its fields' types.

    Null and words are passed over where the type allows them beside numbers.

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
        if isinstance(value, tuple):
            numbers = {f"{name}[{place}]": item for place, item in enumerate(value)}
        for where, number in numbers.items():
            check_number(f"{path}{where}", number, bounds, is_whole=int in kinds)


def check_number(name: str, value: Any, bounds: Bounds, *, is_whole: bool = False) -> None:
    """Refuse what is no number, or not within the bounds."""
    allowed = int if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or value not in bounds:
        kind = "a whole number" if is_whole else "a number"
        raise InputError(f"{name}={describe(value)} must be {kind} {bounds}.")


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
