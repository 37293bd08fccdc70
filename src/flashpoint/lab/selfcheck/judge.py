"""How exact is exact: the error that a result may have.

The error of a result is at most twice that of the reference at the same dtype, plus one epsilon
of the largest value, both against the reference in fp64. Where a value is the difference of two,
one of them counts too (``evaluate.py``). Long sums get the root of their length on
top (``Sums``): implementations add in other orders than the reference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

Results = Mapping[str, Tensor]
"""The output ``o`` and the gradients ``dq``, ``dk``, ... of one call by name."""


class Sample(NamedTuple):
    """One call's results three times: as computed, by the reference in fp64 and at the dtype.

    Where the dtype is fp64 itself, ``plain`` may be ``exact``: its error is not known.
    ``parts``: of results that are what is left of two large numbers, one of these.
    """

    got: Results
    exact: Results
    plain: Results
    parts: Results = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sums:
    """Which sums a call consists of, since rounding grows with the root of their length.

    Attributes:
        group: query heads that share a key head. dk and dv of a group are one sum, where the
            reference adds up a sum for each head.
        terms: of the sums behind an element of o, dq, dk or dv, the longest one or all that follow
            on one another. In fp64 nothing more exact is at hand, so that their root, in
            epsilons, comes on top.
        on_top: terms of results by name that are sums in fp32, whose root comes on top in fp32's
            epsilons: where a sum ends in a few numbers, like a norm's gain, the reference's error
            is left to chance, and where it is added in another order, it may be smaller.
        dtype: of q, k and v, in which a gain's gradient is rounded on its way, and o_i where it
            is a part of gradients.
    """

    group: float = 1.0
    terms: int = 16
    on_top: Mapping[str, int] = field(default_factory=dict[str, int])
    dtype: torch.dtype | None = None

    def factor(self, name: str) -> float:
        """How many times the reference's error is allowed."""
        return 2.0 * (math.sqrt(self.group) if name in ("dk", "dv") else 1.0)

    def epsilon(self, name: str, dtype: torch.dtype) -> float:
        """What of the largest value is allowed besides."""
        on_top = self.on_top.get(name, 0)
        if dtype == torch.float64:
            return math.sqrt(max(on_top, self.terms, 16)) * torch.finfo(dtype).eps
        eps = torch.finfo(dtype).eps
        if name.endswith("gain") and self.dtype is not None:
            eps = max(eps, torch.finfo(self.dtype).eps)
        return eps + math.sqrt(on_top) * torch.finfo(torch.float32).eps


class Share(NamedTuple):
    """What of its budget the worst result of a call has used."""

    name: str
    error: float
    budget: float
    plain: float = 0.0

    @property
    def ratio(self) -> float:
        """1 is all that is allowed; infinite where something is not finite."""
        if not math.isfinite(self.error) or not math.isfinite(self.budget):
            return math.inf
        return self.error / self.budget if self.error else 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: error {self.error:.2e} > budget {self.budget:.2e} "
            f"(plain {self.plain:.2e})"
        )


def share_of(name: str, samples: Sequence[Sample], sums: Sums) -> Share:
    """The largest error of one result over all samples, and its budget."""
    error = plain = size = part = 0.0
    dtype = samples[0].got[name].dtype
    for sample in samples:
        exact = sample.exact[name]
        error = max(error, distance(sample.got[name], exact))
        plain = max(plain, distance(sample.plain[name], exact))
        size = max(size, _largest(exact))
        part = max(part, _largest(sample.parts[name]) if name in sample.parts else 0.0)
    # Under the smallest normal number the distance of neighbors no longer shrinks.
    size = max(size, torch.finfo(dtype).tiny)
    budget = sums.factor(name) * plain + sums.epsilon(name, dtype) * size
    budget += sums.epsilon(name, sums.dtype or dtype) * part
    return Share(name, error, budget, plain)


def distance(got: Tensor, exact: Tensor) -> float:
    """The largest difference; infinite where shapes differ or a number is not finite."""
    if got.shape != exact.shape or not bool(torch.isfinite(got).all()):
        return math.inf
    return _largest(got.double() - exact)


def judge(samples: Sequence[Sample], sums: Sums) -> Share:
    """The result that has used most of its budget, over samples of one kind of call."""
    shares = [share_of(name, samples, sums) for name in samples[0].got]
    return max(shares, key=lambda share: share.ratio)


def _largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0
