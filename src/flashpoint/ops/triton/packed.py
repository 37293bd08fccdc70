"""Packed q, k and v on the GPU: norms in plain PyTorch, then the general kernels.

The result is written where the next projection reads it. dq, dk and dv are copied, behind their
norms, to dqkv.
"""

import functools

from torch import Tensor

from flashpoint.ops.packed import attend_packed, differentiate_packed
from flashpoint.ops.spec import NormTerms, Terms
from flashpoint.ops.triton.backward import launch_backward
from flashpoint.ops.triton.forward import launch_forward

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
    needs = (need_dbias, need_dmask)
    return differentiate_packed(
        launch_backward, do, qkv, q_gain, k_gain, *scored, norm, terms, *needs
    )
