"""Packed q, k and v on the GPU: who takes q and k through their norms, and when.

    whole heads   one kernel, norms inside
    Hopper        q on the chip in forward, k too over 192 to 256 tokens; gradients on their way
                  out; where heads are too wide for that, as portable
    portable      in passes of their own before and behind it (``portable/qk_norm_passes.py``)

The general kernels read v where it lies in qkv, and write dq, dk and dv where they lie in dqkv.
Nothing but the inputs is kept for backward.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.attend import (
    Inputs,
    attend,
    differentiate,
    finish_scored,
    gradient_arguments,
    name_sums,
    results_of,
    sums_given,
)
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.portable.backward_rows import SumGradients, launch_rows
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.portable.qk_norm_passes import denormalize_heads, normalize_heads
from flashpoint.ops.gpu.portable.whole_heads import sums_bias
from flashpoint.ops.gpu.replay import Recorder, Role, run_recorded
from flashpoint.ops.spec import NormTerms, Terms

# tensors of calls, in the order in which ``Call.packed`` takes them
PACKED = (Role.QKV, Role.Q_GAIN, Role.K_GAIN, Role.BIAS, Role.MASK, Role.LENGTHS)
ON_CHIP = range(192, 257)  # tokens for which it pays to normalize k there: docs/log.md


def launch_packed_forward(
    has_sums: bool,
    qkv: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    qk_norm: NormTerms,
    terms: Terms,
) -> list[Tensor]:
    """[B, L, H, D] from qkv [B, L, 3, H, D]; with sums those of each row's weights, [B, H, L]."""
    tensors = (qkv, q_gain, k_gain, bias, mask, key_lengths)
    inputs: Inputs = dict(zip(PACKED, tensors, strict=True))

    def first_call(recorder: Recorder, prepared: Inputs) -> list[Tensor]:
        call = Call.packed(*prepared.values(), qk_norm, terms)._replace(has_sums=has_sums)
        return attend(_normalize_before(call, recorder), recorder, Layout.HEADS_LAST)

    options = (has_sums, qk_norm, terms)
    return run_recorded("packed", inputs, options, results_of(has_sums), first_call)


def _normalize_before(call: Call, recorder: Recorder) -> Call:
    """The call that is left for the kernel of forward: norms that it does not take are done."""
    if call.is_empty:
        return call
    kernels = dispatch.choose(call)
    if not kernels.takes_norms(call):
        return call.of_hats(normalize_heads(call, recorder))
    if kernels is dispatch.HOPPER and call.num_keys not in ON_CHIP:
        of_keys = call._replace(qk_norm=call.qk_norm.of_keys())
        return call.of_hats(normalize_heads(of_keys, recorder))
    return call


def launch_packed_backward(
    of_sums: Sequence[Tensor | None],
    do: Tensor,
    qkv: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    qk_norm: NormTerms,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dqkv, the gradients of the gains there are, then dbias and dmask if needed.

    ``of_sums``: as for ``launch_backward``.
    """
    tensors = (qkv, q_gain, k_gain, bias, mask, key_lengths, do)
    inputs: Inputs = dict(zip((*PACKED, Role.DO), tensors, strict=True))
    inputs |= name_sums(of_sums)
    has_sums = len(of_sums) > 0
    kinds = {Role.DQ_GAIN: qk_norm.q_kind, Role.DK_GAIN: qk_norm.k_kind}
    gains = {Role.DQ_GAIN: q_gain, Role.DK_GAIN: k_gain}
    gains = {role: gain for role, gain in gains.items() if gain is not None}
    shared = [role for role in gains if kinds[role] != "none" and qkv.numel() > 0]

    def first_call(recorder: Recorder, prepared: Inputs) -> list[Tensor]:
        tensors = [*prepared.values()]
        call = Call.packed(*tensors[:6], qk_norm, terms)._replace(has_sums=has_sums)
        do, given = tensors[6], sums_given(prepared, Layout.HEADS_LAST)
        assert do is not None
        dqkv = recorder.empty(Role.DQKV, qkv.shape, qkv.dtype)
        grads = [x.transpose(1, 2) for x in dqkv.unbind(2)]
        needs = (need_dbias, need_dmask)
        shares, scored = _differentiate(call, recorder, do.transpose(1, 2), grads, *needs, given)
        return [dqkv, *(shares[role] for role in shared), *scored]

    options = (has_sums, qk_norm, terms, need_dbias, need_dmask)
    outputs = (Role.DQKV, *shared)
    dqkv, *rest = run_recorded("packed_backward", inputs, options, outputs, first_call)
    shares = dict(zip(shared, rest, strict=False))
    of_gains = [
        shares[role].sum(0).to(gain.dtype) if role in shares else torch.zeros_like(gain)
        for role, gain in gains.items()
    ]
    return [dqkv, *of_gains, *rest[len(shared):]]


def _differentiate(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    need_dbias: bool, need_dmask: bool, given: SumGradients | None,
) -> tuple[dict[Role, Tensor], list[Tensor]]:
    """Write dq, dk and dv to grads; gives shares of the gains' gradients, then dbias and dmask."""
    call = call._replace(bias_has_gradient=need_dbias)
    kernels = None if call.is_empty else dispatch.choose(call, do)
    # the kernel for dbias alone takes no norms
    is_scored = need_dbias and not sums_bias(call)
    if kernels is None or is_scored or not kernels.takes_norms(call):
        hats = call.of_hats(normalize_heads(call, recorder))
        needs = (need_dbias, need_dmask)
        scored = differentiate(hats, recorder, do, grads, Layout.PACKED, *needs, given)
        return denormalize_heads(call, grads, recorder), scored
    if kernels is dispatch.HOPPER:  # norms are made before, gradients taken through them
        made = normalize_heads(call, recorder, has_statistics=True)
        raws = call.qk_norm.arguments() | {"q_raw": call.q, "k_raw": call.k}
        call = call.of_hats(made)
        arguments = gradient_arguments(call) | raws | made
    else:
        arguments = gradient_arguments(call)
    if given is not None:
        scales_do = kernels is dispatch.HOPPER
        do, arguments = launch_rows(call, recorder, do, given, arguments, scales_do=scales_do)
    launch_backward = kernels.backward().launch_backward
    made = launch_backward(call, recorder, do, grads, arguments, Layout.PACKED)
    return made, finish_scored(call, recorder, do, arguments, made, need_dbias, need_dmask)
