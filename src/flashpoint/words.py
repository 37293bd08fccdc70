"""Words for an attention, as "relu4+2/sum", and the fields that they stand for; no torch."""

import re
from typing import Any, TypeGuard

from flashpoint.errors import InputError

_SHIFT = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def word_of(activation: str, bias: object, normalize: str) -> str:
    """Activation, shift and normalization in short, as ``fields_of`` reads them.

    A bias that is learned, a word or not above 0 is no shift.

    Example:
        >>> word_of("relu4", 2, "sum"), word_of("sigmoid", -2.0, "length")
        ('relu4+2/sum', 'sigmoid')
    """
    shift = f"+{float(bias)!r}".removesuffix(".0") if is_shift(bias) else ""
    return f"{activation}{shift}{'/sum' if normalize == 'sum' else ''}"


def is_shift(bias: object) -> TypeGuard[float]:
    """Whether a word has it: a number above 0."""
    return isinstance(bias, int | float) and bias > 0


def fields_of(word: str) -> dict[str, Any]:
    """The fields that a word for an attention sets.

    Of exp, "/sum" has floor 0: no row of exp is all zero, and without a floor it is softmax. A
    number behind "+" is added to the scores.

    Example:
        >>> fields_of("relu4/sum"), fields_of("softmax")
        ({'activation': 'relu4', 'normalize': 'sum'}, {'activation': 'softmax'})
        >>> fields_of("relu4+2/sum")["bias"], fields_of("exp/sum")["floor"]
        (2.0, 0.0)
    """
    start, slash, normalize = word.partition("/")
    activation, plus, shift = start.partition("+")
    fields: dict[str, Any] = {"activation": activation}
    if plus:
        fields["bias"] = _shift_of(shift, word)
    if slash:
        fields["normalize"] = normalize
    return fields | ({"floor": 0.0} if (activation, normalize) == ("exp", "sum") else {})


def _shift_of(number: str, word: str) -> float:
    if not _SHIFT.fullmatch(number):
        raise InputError(
            f"attention {word!r} has {number!r} behind '+', which is no positive number. Write it "
            "as relu4+2/sum, where 2 is added to the scores."
        )
    return float(number)
