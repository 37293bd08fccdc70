"""Softmax attention for the layers: PyTorch's SDPA, with masks as Flashpoint has them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.layers.visibility import Visibility, check_key_lengths, is_sharded
from flashpoint.shapes import Bool, Float


def refuse_shards(attend: Any) -> None:
    """Refuse softmax where it would see this rank's tokens alone."""
    if is_sharded(attend):
        raise UnsupportedError(
            "softmax is not served over shards of a sequence. Take another spec: 'relu4/sum', or "
            "'exp/sum', which is softmax as long as no exp overflows."
        )


def check_softmax_mask(mask: Tensor | None) -> None:
    """Refuse a float mask, which softmax cannot honour."""
    if mask is not None and mask.dtype != torch.bool:
        dtype = str(mask.dtype).removeprefix("torch.")
        raise InputError(
            f"softmax attention takes a bool mask, True may look. Got {dtype}: only pointwise "
            "weights can be multiplied by a float mask."
        )


def attend_softmax(
    q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, added: Tensor | None = None
) -> Float[Tensor, "B H Lq D"]:
    """SDPA, whose own causality is aligned at the start, and whose blind queries may be NaN."""
    if visibility.key_lengths is not None:  # SDPA does not look at them, as our operator does
        check_key_lengths(visibility.key_lengths, q.shape[0], k.shape[2], k.device)
    grouped = q.shape[1] != k.shape[1]
    added = None if added is None else added.to(q.dtype)
    hides = visibility.mask is not None or visibility.key_lengths is not None
    if visibility.causal and added is None and not hides and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    seen = visibility.matrix()
    if seen is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=grouped)
    sighted = seen.any(-1, keepdim=True)
    mask = seen | ~sighted  # blind queries look anywhere, so that no gradient is NaN, and get 0
    if added is not None:
        mask = added.where(mask, -torch.inf)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return o.where(sighted, 0)


def softmax_weights(scores: Tensor, seen: Bool[Tensor, "#B #H #Lq Lk"] | None) -> Tensor:
    """Weights of rows of scores; those of a row that sees nothing are 0."""
    if seen is None:
        return scores.softmax(-1)
    blind = ~seen.any(-1, keepdim=True)
    return scores.where(seen | blind, -torch.inf).softmax(-1).where(seen, 0)
