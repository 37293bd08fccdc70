"""Pointwise attention as one would write it down, with the Lq x Lk matrix, eager and compiled."""

from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.provider import Attend, Provider, compiled
from flashpoint.ops.activation import find_activation
from flashpoint.ops.options import FLOOR

MAX_MATRIX_BYTES = {"cpu": 2 * 1024**3, "cuda": 16 * 1024**3}
"""Left out where one Lq x Lk matrix of all heads takes more."""


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    activation: str = "relu",
    normalize: str = "length",
    floor: float = FLOOR,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | float = 0.0,
) -> Tensor:
    """Weights h(scale q k^T + bias) over the number of keys that are seen, or over their sum."""
    h = find_activation(activation).forward
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = h(q @ k.mT * q.shape[-1] ** -0.5 + bias)  # [B, H, Lq, Lk]
    n = visible_counts(q, k).to(q.dtype) if causal else k.shape[-2]
    if causal:
        weights = weights.tril(k.shape[-2] - q.shape[-2])
    if mask is not None:
        seen = mask.tril(k.shape[-2] - q.shape[-2]) if causal else mask
        n = seen.sum(-1, keepdim=True).clamp_min(1).to(q.dtype)
        weights = weights * mask
    if normalize == "sum":
        n = weights.sum(-1, keepdim=True) + floor * n
    return weights @ v / n


def visible_counts(q: Tensor, k: Tensor) -> Tensor:
    """How many keys each query sees if causal, [Lq, 1]."""
    offset = k.shape[-2] - q.shape[-2]
    return torch.arange(1, q.shape[-2] + 1, device=q.device)[:, None] + offset


def refuse_large_matrix(case: Case) -> str | None:
    """The matrix has to fit."""
    allowed = MAX_MATRIX_BYTES[case.device]
    if case.matrix_bytes <= allowed:
        return None
    return (
        f"its L x L matrix takes {case.matrix_bytes / 1e9:.1f} GB, "
        f"more than {allowed / 1e9:.1f} GB"
    )


def _bind(case: Case) -> Attend:
    return partial(plain_attention, **case.options)


@lru_cache(maxsize=8)  # one graph for all uses of a case
def _bind_compiled(case: Case) -> Attend:
    options = case.options

    def attend(q: Tensor, k: Tensor, v: Tensor, **terms: Any) -> Tensor:
        return plain_attention(q, k, v, **options, **terms)

    return compiled(attend)


PROVIDERS = (
    Provider(name="plain", function="pointwise", bind=_bind, refusal=refuse_large_matrix),
    Provider(
        name="plain_compiled",
        function="pointwise",
        bind=_bind_compiled,
        refusal=refuse_large_matrix,
        compiles=True,
    ),
)
