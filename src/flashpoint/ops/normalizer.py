"""n ** -alpha, which divides a sum over keys: for the reference, the CPU, and constants.

``gpu/normalizer.py`` has it for kernels.
"""

import math
from typing import Any, overload

import torch
from torch import Tensor


@overload
def normalizer(n: int | float, alpha: float) -> float: ...
@overload
def normalizer(n: Tensor, alpha: float, dtype: torch.dtype) -> Tensor: ...


def normalizer(n: int | float | Tensor, alpha: float, dtype: torch.dtype | None = None) -> Any:
    """n ** -alpha of a length, infinite where Python would raise; or of counts of visible keys.

    A query that sees no key gives zeros whatever its normalizer is, so that counts are at least 1.
    """
    if isinstance(n, Tensor):
        return n.clamp(min=1).to(dtype) ** -alpha
    try:
        return float(n) ** -alpha
    except OverflowError:
        return math.inf
