"""Who computes attention: Flashpoint and the peers it is measured against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flashpoint
from flashpoint.bench.cases import Case
from flashpoint.bench.timing import Call

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MAX_PLAIN_BYTES = 2 * 1024**3
"""Plain PyTorch is left out where one L x L matrix of all heads takes more."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a call reads; ``do`` is the gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """One way to compute attention.

    Attributes:
        attend: takes q, k, v and the options.
        options: the keyword arguments of ``attend`` for a case.
        refusal: why a case is left out, or None.
        is_pointwise: computes Flashpoint's function, so its error can be measured.
    """

    name: str
    attend: Callable[..., Tensor]
    options: Callable[[Case], dict[str, Any]]
    refusal: Callable[[Case], str | None]
    is_pointwise: bool


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Standard normal tensors, made in place so that no temporary leaves a trace in memory."""
    generator = torch.Generator(case.device).manual_seed(seed)
    dtype = TORCH_DTYPES[case.dtype]
    q, k, v, do = (
        torch.empty(case.shape.sizes, dtype=dtype, device=case.device).normal_(generator=generator)
        for _ in range(4)
    )
    if case.mode != "forward":
        for tensor in (q, k, v):
            tensor.requires_grad_()
    return Inputs(q, k, v, do)


def make_forward(provider: Provider, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    """The call that gives o; whether it records a graph is up to the inputs."""
    return partial(provider.attend, inputs.q, inputs.k, inputs.v, **provider.options(case))


def make_call(provider: Provider, case: Case, inputs: Inputs) -> Call:
    """The call to time: gives o, or (dq, dk, dv) in training mode."""
    forward = make_forward(provider, case, inputs)
    if case.mode != "training":
        return forward
    leaves = (inputs.q, inputs.k, inputs.v)
    return lambda: torch.autograd.grad(forward(), leaves, inputs.do)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """ReLU attention as one would write it down, with the L x L matrix."""
    scores = q @ k.mT * q.shape[-1] ** -0.5  # [B, H, L, L]
    return F.relu(scores) @ v / k.shape[-2]


def _refuse_plain(case: Case) -> str | None:
    """Plain PyTorch is written for relu without causality, and its matrix has to fit."""
    if case.activation != "relu" or case.causal:
        return "plain PyTorch is measured for relu without causality only"
    matrix_bytes = (
        case.shape.batch
        * case.shape.heads
        * case.shape.length**2
        * TORCH_DTYPES[case.dtype].itemsize
    )
    if matrix_bytes > MAX_PLAIN_BYTES:
        return (
            f"its L x L matrix takes {matrix_bytes / 1e9:.1f} GB, "
            f"more than {MAX_PLAIN_BYTES / 1e9:.1f} GB"
        )
    return None


def _serve_all(case: Case) -> str | None:
    """Refuse nothing."""
    del case
    return None


_ALL = (
    Provider(
        name="flashpoint",
        attend=flashpoint.attention,
        options=lambda case: {"activation": case.activation, "causal": case.causal},
        refusal=_serve_all,
        is_pointwise=True,
    ),
    Provider(
        name="sdpa",
        attend=F.scaled_dot_product_attention,
        options=lambda case: {"is_causal": case.causal},
        refusal=_serve_all,
        is_pointwise=False,
    ),
    Provider(
        name="plain",
        attend=plain_attention,
        options=lambda case: {},
        refusal=_refuse_plain,
        is_pointwise=True,
    ),
)

PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}
