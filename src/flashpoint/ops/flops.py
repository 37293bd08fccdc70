"""What the operators compute, counted as torch counts its own: a multiply-add is two.

Norms, activations and masks are free; pairs outside a mask count, as they do for torch's SDPA.
"""

from typing import Any

from torch import Tensor


def flops(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **_: Any) -> int:
    """Two products: q @ k and weights @ v."""
    return 2 * _count_pairs(q, k, rest) * (q.shape[-1] + v.shape[-1])


def flops_backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **_: Any) -> int:
    """Five products: scores again, dw, dv, dq and dk."""
    return 2 * _count_pairs(q, k, rest) * (3 * q.shape[-1] + 2 * v.shape[-1])


def flops_packed(qkv: Tensor, *rest: Any, **out: Any) -> int:
    """The same for packed q, k and v."""
    B, L, _, H, D = qkv.shape
    return 4 * B * H * L * L * D


def flops_packed_backward(do: Tensor, qkv: Tensor, *rest: Any, **_: Any) -> int:
    """The same for packed q, k and v."""
    return 5 * flops_packed(qkv) // 2


def _count_pairs(q: Tensor, k: Tensor, rest: tuple[Any, ...]) -> int:
    """Query-key pairs over all heads."""
    if q.dim() == 4:
        return q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    cu_seqlens_q, cu_seqlens_k, longest_q, longest_k = rest[2:6]
    if type(cu_seqlens_q) is not Tensor or cu_seqlens_q.is_meta:  # nothing to read
        return q.shape[1] * (cu_seqlens_q.shape[0] - 1) * longest_q * longest_k
    return q.shape[1] * int((cu_seqlens_q.diff().long() * cu_seqlens_k.diff().long()).sum())
