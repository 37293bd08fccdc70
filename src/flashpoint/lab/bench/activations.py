"""Every built-in activation at one shape: is the result right, and how long does it take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

import flashpoint
from flashpoint.errors import InputError
from flashpoint.lab.bench.accuracy import relative_error
from flashpoint.lab.bench.calls import Inputs, make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.device import timer_for
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.lab.bench.timing import Budget, Timing, interleave, start
from flashpoint.ops.activation import BUILTIN

BUDGET = Budget(rounds=10, seconds=0.5)
FACTOR = 2.0
"""How much larger than plain PyTorch's at the same dtype an error may be."""
MAX_MATRIX_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Deviation:
    """Relative error against fp64, and the largest that rounding explains."""

    error: float
    bound: float

    @property
    def is_right(self) -> bool:
        """Whether the error is within the bound."""
        return self.error <= self.bound


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationRow:
    """One activation in one dtype; ``gradients`` is the worst of dq, dk and dv."""

    activation: str
    dtype: str
    output: Deviation
    gradients: Deviation
    flashpoint: Timing
    sdpa: Timing

    @property
    def is_right(self) -> bool:
        """Whether output and gradients are."""
        return self.output.is_right and self.gradients.is_right

    @property
    def ratio(self) -> float:
        """Flashpoint's median time over SDPA's."""
        return self.flashpoint.median_s / self.sdpa.median_s


def measure_activations(shape: Shape, dtypes: Sequence[str]) -> Iterator[ActivationRow]:
    """All activations in one dtype after the other, forward timed and gradients checked."""
    matrix_bytes = shape.batch * shape.heads * shape.length**2 * 8
    if matrix_bytes > MAX_MATRIX_BYTES:
        raise InputError(
            f"shape {shape}: the fp64 reference would need {matrix_bytes / 1e9:.1f} GB for one "
            f"L x L matrix, at most {MAX_MATRIX_BYTES / 1e9:.1f} GB are allowed. Take a smaller "
            "one, or `flashpoint bench --shape`."
        )
    for dtype in dtypes:
        for activation in BUILTIN:
            yield _measure(Case(shape=shape, dtype=dtype, mode="recording", activation=activation))


def _measure(case: Case) -> ActivationRow:
    """Compare with the reference first, then time."""
    inputs = make_inputs(case)
    output, *gradients = _deviations(case, inputs)
    forward = replace(case, mode="forward")
    plain_inputs = make_inputs(forward)
    timer = timer_for(case.device)
    calls = {
        name: make_call(PROVIDERS[name], forward, plain_inputs) for name in ("flashpoint", "sdpa")
    }
    started = {name: start(call, timer)[0] for name, call in calls.items()}
    timings = interleave(started, BUDGET, timer)
    return ActivationRow(
        activation=case.activation,
        dtype=case.dtype,
        output=output,
        gradients=max(gradients, key=lambda found: found.error / found.bound),
        flashpoint=timings["flashpoint"],
        sdpa=timings["sdpa"],
    )


def _deviations(case: Case, inputs: Inputs) -> list[Deviation]:
    """Of o, dq, dk and dv."""
    wide = [tensor.detach().double() for tensor in (inputs.q, inputs.k, inputs.v, inputs.do)]
    for tensor in wide[:3]:
        tensor.requires_grad_()
    q, k, v, do = wide
    exact = _run(case, Inputs(q, k, v, do), "reference")
    plain = _run(case, inputs, "reference")
    got = _run(case, inputs, "auto")
    eps = torch.finfo(inputs.q.dtype).eps
    return [
        Deviation(relative_error(ours, true), FACTOR * relative_error(theirs, true) + eps)
        for ours, theirs, true in zip(got, plain, exact, strict=True)
    ]


def _run(case: Case, inputs: Inputs, impl: Literal["auto", "reference"]) -> list[Tensor]:
    """o, dq, dk and dv by one implementation."""
    q, k, v = inputs.q, inputs.k, inputs.v
    o = flashpoint.attention(q, k, v, activation=case.activation, impl=impl)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), inputs.do)]
