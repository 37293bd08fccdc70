"""Packed q, k and v on the GPU: fused kernels where they serve, else norms and the general ones.

The general way writes the result where the next projection reads it. It copies dq, dk and dv,
behind their norms, to dqkv.
"""

import functools

from torch import Tensor

from flashpoint.ops.packed import attend_packed, differentiate_packed
from flashpoint.ops.spec import NormTerms, Terms
from flashpoint.ops.triton.activations import is_builtin
from flashpoint.ops.triton.backward import launch_backward
from flashpoint.ops.triton.forward import launch_forward

HAS_FUSED = False  # packed_forward.py and packed_backward.py are still to come
MOST_TOKENS = 1024
HEAD_DIMS = (16, 32, 64, 128)

_launch_heads_last = functools.partial(launch_forward, heads_last=True)


def launch_packed_forward(
    qkv: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    norm: NormTerms,
    terms: Terms,
) -> Tensor:
    """[B, L, H, D] from qkv [B, L, 3, H, D]."""
    scored = (bias, mask, key_lengths)
    if serves(qkv, *scored, terms):
        from flashpoint.ops.triton.packed_forward import packed_forward

        return packed_forward(qkv, q_gain, k_gain, norm, terms)
    return attend_packed(_launch_heads_last, qkv, q_gain, k_gain, *scored, norm, terms)


def launch_packed_backward(
    do: Tensor,
    qkv: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    norm: NormTerms,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dqkv, the gradients of the gains there are, then dbias and dmask if needed."""
    scored = (bias, mask, key_lengths)
    if serves(qkv, *scored, terms):
        from flashpoint.ops.triton.packed_backward import packed_backward

        grads = packed_backward(do.contiguous(), qkv, q_gain, k_gain, norm, terms)
        return [grad for grad in grads if grad is not None]
    needs = (need_dbias, need_dmask)
    return differentiate_packed(
        launch_backward, do, qkv, q_gain, k_gain, *scored, norm, terms, *needs
    )


def serves(
    qkv: Tensor, bias: Tensor | None, mask: Tensor | None, key_lengths: Tensor | None, terms: Terms
) -> bool:
    """True where fused kernels serve the call: short and dense, causal or not, nothing hidden."""
    _, num_tokens, _, _, head_dim = qkv.shape
    hides = not (bias is mask is key_lengths is terms.left is None and terms.right in (None, 0))
    short = num_tokens <= MOST_TOKENS and head_dim in HEAD_DIMS and qkv.numel() > 0
    readable = qkv.stride(4) == 1 and not qkv.is_neg()
    return HAS_FUSED and short and readable and not hides and is_builtin(terms.activation)
