"""The search for a gain, a bias and a scale a head, in least squares.

A bias is searched as a threshold t = -bias / scale: scores are raised above it, s * (x - t), so
that another scale moves no score over it. It goes first along a grid in units of the head's own
scores, then threshold and scale in ever smaller steps. Heads do not depend on each other, so all
are searched at once, each with its own steps.

Shapes: B samples, H query heads, Lq queries, D head dim.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.convert.substitute import Substitute
from flashpoint.errors import InputError

GRID = (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
"""Thresholds to try first, in deviations of the head's scores from their mean."""
ROUNDS = 16
"""Of steps to all sides. A head that finds nothing better halves its steps."""
SCALES = (1 / 16, 16.0)
"""Where a scale may lie. Without an end gelu's would grow on and on, towards relu."""
LEAST_GAIN = 1e-6
"""The share by which an error must fall: less is rounding, and numbers would drift by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How far a substitute is from softmax.

    Errors are squared distances between both outputs, divided by the squared size of softmax's:
    0 is equal, 1 is as far as zeros are.

    Attributes:
        before: with the spec's own numbers.
        after: with those that were found.
    """

    before: float
    after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of attention: q, k and v, SDPA's other arguments, and the output to come near to.

    Attributes:
        tensors: query [B, H, Lq, D], key and value.
        options: as SDPA names them.
        output: [B, H, Lq, Dv]. Rows that are not finite are left out: softmax gives NaN to a
            query that sees no key.
    """

    tensors: tuple[Tensor, Tensor, Tensor]
    options: dict[str, Any]
    output: Tensor


@torch.no_grad()
def search_numbers(substitute: Substitute, calls: list[Call], name: str) -> Fit:
    """Set a substitute's gain, bias and scale to the best that are found, as far as it has them.

    Args:
        substitute: its gain is learned per head.
        calls: what it is asked, and what it should answer.
        name: of the module, for errors.
    """
    search = _Search(substitute, calls, name)
    before = search.share()
    search.run()
    return Fit(before=before, after=search.share())


class _Search:
    """The best numbers so far; all tensors are [H], in fp64.

    Attributes:
        threshold, scale, gain: the numbers.
        error: the squared distance that they leave.
    """

    def __init__(self, substitute: Substitute, calls: list[Call], name: str) -> None:
        self.substitute = substitute
        self.targets = [_Target(call) for call in calls]
        self.size = torch.stack([_by_head(x.output, x.output) for x in self.targets]).sum(0)
        if not any(target.has_rows for target in self.targets):
            raise InputError(
                f"{name}: softmax attention gives nothing finite for these batches. Give others."
            )
        start = torch.ones_like(self.size)
        self.scale = start if substitute.scale is None else substitute.scale.double()
        bias = 0.0 * start if substitute.bias is None else substitute.bias.double()
        self.threshold = -bias / self.scale
        assert substitute.gain is not None
        self.gain = substitute.gain.double()
        own, met = self._products(self.threshold, self.scale)
        self.error = self._error(own, met, self.gain)
        self._set()

    def run(self) -> None:
        """Choose all numbers and set them."""
        mean, deviation = self._scores()
        self._offer(self.threshold, self.scale)  # with the best gain
        if self.substitute.bias is not None:
            for number in GRID:
                self._offer(mean + number * deviation, self.scale)
        step = torch.ones_like(mean)
        for _ in range(ROUNDS):
            improved = torch.zeros_like(mean, dtype=torch.bool)
            for sign in (1, -1):
                if self.substitute.bias is not None:
                    move = 0.5 * sign * step * deviation
                    improved |= self._offer(self.threshold + move, self.scale)
                if self.substitute.scale is not None:
                    improved |= self._offer(self.threshold, self.scale * 2.0 ** (sign * step))
            step = step.where(improved, step / 2)
        self._set()

    def share(self) -> float:
        """The error of all heads beside the size of what they should give."""
        error, size = float(self.error.sum()), float(self.size.sum())
        return error / size if size else (math.inf if error else 0.0)

    def _offer(self, threshold: Tensor, scale: Tensor) -> Tensor:
        """Take these numbers for the heads that they serve better; True for those."""
        scale = scale.clamp(*SCALES) if self.substitute.scale is not None else scale
        own, met = self._products(threshold, scale)
        gain = self._rounded(self.substitute.gain, met / own)
        gain = gain.where(gain.isfinite(), 1.0)  # a head that gives zeros only
        error = self._error(own, met, gain)
        better = error < self.error * (1 - LEAST_GAIN)
        self.threshold = threshold.where(better, self.threshold)
        self.scale = scale.where(better, self.scale)
        self.gain, self.error = gain.where(better, self.gain), error.where(better, self.error)
        return better

    def _products(self, threshold: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Of outputs with a gain of 1: their squared size, and their product with the wanted."""
        self._write(threshold, scale, torch.ones_like(scale))
        outputs = [target.compare(self.substitute) for target in self.targets]
        pairs = list(zip(outputs, self.targets, strict=True))
        own = torch.stack([_by_head(o, o) for o, _ in pairs]).sum(0)
        met = torch.stack([_by_head(o, target.output) for o, target in pairs]).sum(0)
        return own, met

    def _error(self, own: Tensor, met: Tensor, gain: Tensor) -> Tensor:
        """Infinite where exp overflowed."""
        error = self.size - 2 * gain * met + gain.square() * own
        return error.clamp(min=0.0).nan_to_num(torch.inf, torch.inf)

    def _set(self) -> None:
        self._write(self.threshold, self.scale, self.gain)

    def _write(self, threshold: Tensor, scale: Tensor, gain: Tensor) -> None:
        """Into the parameters; what is not learned stays."""
        numbers = {"scale": scale, "bias": -scale * threshold, "gain": gain}
        for name, number in numbers.items():
            parameter = getattr(self.substitute, name)
            if parameter is not None:
                parameter.copy_(number)

    @staticmethod
    def _rounded(parameter: nn.Parameter | None, number: Tensor) -> Tensor:
        """As the parameter will hold it."""
        return number if parameter is None else number.to(parameter.dtype).double()

    def _scores(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each head's scores, over all keys, seen or not."""
        sums = torch.zeros_like(self.size), torch.zeros_like(self.size)
        count = 0
        for target in self.targets:
            scores = target.scores(self.substitute).transpose(0, 1).flatten(1)  # [H, B Lq Lk]
            sums[0].add_(scores.sum(1, dtype=torch.float64))
            sums[1].add_(scores.square().sum(1, dtype=torch.float64))
            count += scores.shape[1]
        mean = sums[0] / count
        variance = sums[1] / count - mean.square()
        return mean, variance.clamp(min=1e-12).sqrt()


class _Target:
    """What one call should give, and what a substitute gives instead."""

    def __init__(self, call: Call) -> None:
        rows = call.output.isfinite().all(-1, keepdim=True)  # [B, H, Lq, 1]
        self.call, self.rows = call, rows
        self.output = call.output.where(rows, 0.0)
        self.has_rows = bool(rows.any())

    def compare(self, substitute: Substitute) -> Tensor:
        """The substitute's output in those rows, zeros in the others."""
        return substitute(*self.call.tensors, **self.call.options).where(self.rows, 0.0)

    def scores(self, substitute: Substitute) -> Tensor:
        """The substitute's, [B, H, Lq, Lk]; 0 where not finite, as in keys that nobody sees."""
        q, k, _ = self.call.tensors
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scale = substitute.scale_of(self.call.options.get("scale"))
        scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        return scores.nan_to_num(0.0, 0.0, 0.0)


def _by_head(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of two outputs, [H], in fp64."""
    return torch.einsum("bhld,bhld->h", a.double(), b.double())
