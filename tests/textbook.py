"""The operator as a textbook writes it: one number at a time, with Python's own mathematics."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def sigmoid(s: float) -> float:
    """1 / (1 + e^-s), without overflow."""
    return 1 / (1 + math.exp(-s)) if s >= 0 else math.exp(s) / (1 + math.exp(s))


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda s: max(s, 0.0),
    "relu2": lambda s: max(s, 0.0) ** 2,
    "relu3": lambda s: max(s, 0.0) ** 3,
    "relu4": lambda s: max(s, 0.0) ** 4,
    "relu6": lambda s: min(max(s, 0.0), 6.0),
    "gelu": lambda s: s * math.erfc(-s / math.sqrt(2)) / 2,
    "silu": lambda s: s * sigmoid(s),
    "softplus": lambda s: max(s, 0.0) + math.log1p(math.exp(-abs(s))),
    "sigmoid": sigmoid,
    "exp": math.exp,
    "identity": lambda s: s,
}

DERIVATIVES: dict[str, Callable[[float], float]] = {
    "relu": lambda s: float(s > 0),
    "relu2": lambda s: 2 * max(s, 0.0),
    "relu3": lambda s: 3 * max(s, 0.0) ** 2,
    "relu4": lambda s: 4 * max(s, 0.0) ** 3,
    "relu6": lambda s: float(0 < s < 6),
    "gelu": lambda s: (
        math.erfc(-s / math.sqrt(2)) / 2 + s * math.exp(-s * s / 2) / math.sqrt(2 * math.pi)
    ),
    "silu": lambda s: sigmoid(s) * (1 + s * sigmoid(-s)),
    "softplus": sigmoid,
    "sigmoid": lambda s: sigmoid(s) * sigmoid(-s),
    "exp": math.exp,
    "identity": lambda s: 1.0,
}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    activation: str,
    alpha: float = 1.0,
    length: str | float,
    scale: float | None,
    bias: float | Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: tuple[int | None, int | None] | None,
    key_lengths: Tensor | None,
    normalize: str = "length",
    floor: float = 1e-3,
    return_sums: bool = True,
) -> tuple[Tensor, Tensor]:
    """o_i = n_i^-alpha sum_j w_ij v_j or sum_j w_ij v_j / (z_i + floor n_i), and z_i = sum_j w_ij.

    w_ij = m_ij h(scale q_i . k_j + b_ij), for one i and j after another.
    """
    assert return_sums
    (B, Hq, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    left, right = window or (None, None)
    is_bool = mask is not None and mask.dtype == torch.bool
    factor, added = (
        torch.as_tensor(x, dtype=torch.float64).expand(B, Hq, Lq, Lk).tolist()
        for x in (1.0 if mask is None else mask, 0.0 if bias is None else bias)
    )
    scores = (q @ k.repeat_interleave(Hq // Hkv, 1).mT * (scale or D**-0.5)).tolist()
    o = torch.zeros(B, Hq, Lq, Dv, dtype=torch.float64)
    sums = torch.zeros(B, Hq, Lq, dtype=torch.float64)

    def sees(b: int, h: int, i: int, j: int) -> bool:
        p = i + Lk - Lq
        return (
            (key_lengths is None or j < key_lengths[b])
            and (not causal or j <= p)
            and (left is None or p - left <= j)
            and (right is None or j <= p + right)
            and (not is_bool or bool(factor[b][h][i][j]))
        )

    for b, h, i in torch.cartesian_prod(*map(torch.arange, (B, Hq, Lq))).tolist():
        seen = [j for j in range(Lk) if sees(b, h, i, j)]
        n = {"visible": len(seen), "keys": Lk}.get(length, length)
        weights = {
            j: factor[b][h][i][j] * ACTIVATIONS[activation](scores[b][h][i][j] + added[b][h][i][j])
            for j in seen
        }
        sums[b, h, i] = z = math.fsum(weights.values())
        divisor = z + floor * n if normalize == "sum" else n**alpha if n else 1.0
        for j, weight in weights.items():
            if weight:
                o[b, h, i] += weight / divisor * v[b, h * Hkv // Hq, j]
    return o, sums
