"""Attention over packed q, k and v by way of the general one: norms before it and behind it.

Nothing but the inputs is kept for backward: the normalized q and k are made again.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from flashpoint.ops.qk_norm import normalize, normalize_backward
from flashpoint.ops.spec import NormTerms, Terms
from flashpoint.shapes import Float

Result = TypeVar("Result")
Heads = tuple[
    Float[Tensor, "B H L D"],
    Float[Tensor, "B H L D"],
    Float[Tensor, "B H L D"],
]


def attend_packed(
    attend: Callable[..., Result],
    qkv: Float[Tensor, "B L 3 H D"],
    q_gain: Float[Tensor, " D"] | None,
    k_gain: Float[Tensor, " D"] | None,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    qk_norm: NormTerms,
    terms: Terms,
) -> Result:
    """Norms, then ``attend``, which takes q, k, v as [B, H, L, D] and leaves [B, L, H, D]."""
    heads = normalized_heads(qkv, q_gain, k_gain, key_lengths, qk_norm)
    return attend(*heads, bias, mask, key_lengths, terms)


def differentiate_packed(
    differentiate: Callable[..., list[Tensor]],
    do: Float[Tensor, "B L H D"],
    qkv: Float[Tensor, "B L 3 H D"],
    q_gain: Float[Tensor, " D"] | None,
    k_gain: Float[Tensor, " D"] | None,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    qk_norm: NormTerms,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dqkv, the gradients of the gains there are, then dbias and dmask if needed.

    ``differentiate`` gives dq, dk, dv, dbias and dmask of the general attention.
    """
    heads = normalized_heads(qkv, q_gain, k_gain, key_lengths, qk_norm)
    needs = (need_dbias, need_dmask)
    do = do.transpose(1, 2)
    dq, dk, dv, *scored = differentiate(do, *heads, bias, mask, key_lengths, terms, *needs)
    q, k, _ = qkv.unbind(2)
    k = existing(k, key_lengths)
    dqkv = qkv.new_empty(qkv.shape)
    dq, dq_gain = normalize_backward(dq.transpose(1, 2), q, qk_norm.q_kind, q_gain, qk_norm.q_eps)
    dk, dk_gain = normalize_backward(dk.transpose(1, 2), k, qk_norm.k_kind, k_gain, qk_norm.k_eps)
    for part, grad in zip(dqkv.unbind(2), (dq, dk, dv.transpose(1, 2)), strict=True):
        part.copy_(grad)
    gains = ((q_gain, dq_gain), (k_gain, dk_gain))
    of_gains = [
        dgain.to(gain.dtype) for gain, dgain in gains if gain is not None and dgain is not None
    ]
    return [dqkv, *of_gains, *scored]


def normalized_heads(
    qkv: Float[Tensor, "B L 3 H D"],
    q_gain: Float[Tensor, " D"] | None,
    k_gain: Float[Tensor, " D"] | None,
    key_lengths: Tensor | None,
    qk_norm: NormTerms,
) -> Heads:
    """q, k and v as the general attention takes them."""
    q, k, v = qkv.unbind(2)
    q = normalize(q, qk_norm.q_kind, q_gain, qk_norm.q_eps)
    k = normalize(existing(k, key_lengths), qk_norm.k_kind, k_gain, qk_norm.k_eps)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def existing(k: Float[Tensor, "B L H D"], key_lengths: Tensor | None) -> Tensor:
    """k with zeros where no key exists: not even a NaN there reaches the gain's gradient."""
    if key_lengths is None:
        return k
    key = torch.arange(k.shape[1], device=k.device)
    return k.where((key < key_lengths.unsqueeze(1))[:, :, None, None], 0)
