"""Masks of Hugging Face's models, as scaled_dot_product_attention takes them.

A mask may be bool, True may look; numbers that are added, where a large negative one hides, as
``Substitute`` knows; or None, where the module says whether it is causal. A relative bias of
positions comes beside it.
Shapes: B batch, H query heads, Lq queries, Lk keys.
"""

import math
from typing import Any

import torch
from torch import Tensor

from flashpoint.errors import InputError, UnsupportedError


def can_read_masks(implementation: str | None) -> bool:
    """Whether a model that computes by this implementation makes masks of the kinds above.

    Flash kernels and FlexAttention have other ones, or none where each query sees all before it.
    """
    if implementation in (None, "sdpa", "eager"):
        return True
    from transformers import AttentionMaskInterface

    functions: Any = AttentionMaskInterface()
    return functions.get(implementation) in (functions["sdpa"], functions["eager"])


def merge(
    mask: Tensor | None,
    position_bias: Tensor | None,
    is_causal: bool,
    sizes: tuple[int, int],
) -> tuple[Tensor | None, bool]:
    """One mask for SDPA in place of a model's, and whether the call is still causal beside it.

    Args:
        mask: of the model; None hides nothing but what ``is_causal`` does.
        position_bias: added to the scores, [#B, #H, Lq, Lk].
        is_causal: queries see keys up to their own place, counted from the first; only without
            a mask.
        sizes: Lq, Lk.
    """
    if mask is not None:
        mask = _checked(mask, sizes)
    if position_bias is None:
        return mask, is_causal
    if is_causal:
        mask = torch.ones(sizes, dtype=torch.bool, device=position_bias.device).tril()
    if mask is None:
        return position_bias, False
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, -math.inf), False
    return position_bias + mask, False


def _checked(mask: Tensor, sizes: tuple[int, int]) -> Tensor:
    """A mask of the two kinds that are served, for these keys."""
    num_queries, num_keys = sizes
    if mask.dim() != 4:
        raise UnsupportedError(
            f"The attention mask has shape {list(mask.shape)}, expected [B, H, Lq={num_queries}, "
            f"Lk={num_keys}]. Models make it for 'sdpa' and 'eager': set one of these first, by "
            "model.set_attn_implementation."
        )
    mask = mask[..., :num_keys]  # some models make it for a whole static cache
    if mask.dtype != torch.bool and not mask.is_floating_point():
        dtype = str(mask.dtype).removeprefix("torch.")
        raise InputError(
            f"The attention mask is {dtype}, expected bool (True may look) or floating (added)."
        )
    return mask
