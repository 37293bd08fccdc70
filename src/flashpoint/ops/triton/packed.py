"""Packed q, k and v on the GPU. By the length of a call and by what kernels serve it:

    up to 64 tokens   one kernel, norms inside (``packed_whole``)
    192 to 256        forward on Hopper: K is normalised on the chip (``hopper_norm``)
    else              norms in passes of their own (``packed_heads``), then the general kernels

The general kernels read v where it lies in qkv, and write dq, dk and dv where they lie in dqkv;
norms take these two back in place. Nothing but the inputs is kept for backward.
"""

from torch import Tensor

from flashpoint.ops.spec import NormTerms, Terms
from flashpoint.ops.triton import hopper, packed_whole
from flashpoint.ops.triton.backward import launch_backward_together
from flashpoint.ops.triton.forward import launch_forward
from flashpoint.ops.triton.packed_call import PackedCall
from flashpoint.ops.triton.packed_heads import denormalise_heads, normalise_heads
from flashpoint.ops.triton.problem import prepare
from flashpoint.ops.triton.replay import Recorder, run_recorded

ON_CHIP = range(192, 257)  # tokens for which it pays to normalise K there: measured on an H200
ON_CHIP_DIM = 64  # the largest head dim of it


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
    call = PackedCall(qkv, q_gain, k_gain, norm, terms)
    scored = (bias, mask, key_lengths)
    if scored == (None, None, None):
        if packed_whole.suits(call):
            return packed_whole.launch_whole(call)
        if _stays_on_chip(call):
            return _launch_on_chip(call)
    return _launch_apart(call, *scored)


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
    call = PackedCall(qkv, q_gain, k_gain, norm, terms)
    scored = (bias, mask, key_lengths)
    if scored == (None, None, None) and packed_whole.suits(call):
        return packed_whole.launch_whole_backward(call, do)
    heads, needs = _heads(call, key_lengths), (need_dbias, need_dmask)
    dqkv, *others = launch_backward_together(do.transpose(1, 2), *heads, *scored, terms, *needs)
    dq, dk, _ = dqkv.unbind(2)
    q, k, _ = qkv.unbind(2)
    of_gains = denormalise_heads(dq, q, q_gain, None, norm.q_kind, norm.q_eps)
    of_gains += denormalise_heads(dk, k, k_gain, key_lengths, norm.k_kind, norm.k_eps)
    return [dqkv, *of_gains, *others]


def _heads(call: PackedCall, key_lengths: Tensor | None) -> list[Tensor]:
    """q-hat, k-hat and v as [B, H, L, D]."""
    q, k, v = call.qkv.unbind(2)
    norm = call.norm
    q = normalise_heads(q, call.q_gain, None, norm.q_kind, norm.q_eps)
    k = normalise_heads(k, call.k_gain, key_lengths, norm.k_kind, norm.k_eps)
    return [x.transpose(1, 2) for x in (q, k, v)]


def _launch_apart(
    call: PackedCall, bias: Tensor | None, mask: Tensor | None, key_lengths: Tensor | None
) -> Tensor:
    """Norms, then the general kernels."""
    heads = _heads(call, key_lengths)
    return launch_forward(*heads, bias, mask, key_lengths, call.terms, heads_last=True)


def _stays_on_chip(call: PackedCall) -> bool:
    """True where the forward kernel for Hopper, if it serves, is to normalise K itself."""
    return (
        call.norm.k_kind != "none"
        and call.qkv.shape[1] in ON_CHIP
        and call.qkv.shape[4] <= ON_CHIP_DIM
        and hopper.serves(call.qkv.device)
    )


def _launch_on_chip(call: PackedCall) -> Tensor:
    inputs = prepare(qkv=call.qkv, q_gain=call.q_gain, k_gain=call.k_gain)
    B, L, _, H, D = call.qkv.shape

    def first_call(recorder: Recorder) -> list[Tensor]:
        own = PackedCall(*inputs.values(), call.norm, call.terms)
        problem = own.problem()
        kernels = hopper.forward_kernels(problem)
        if kernels is None:
            recorder.is_repeatable = False
            return [_launch_apart(call, None, None, None)]
        o = recorder.empty("o", (B, L, H, D), call.qkv.dtype)
        recorder.name_parts("qkv", ("q", "k", "v"))
        kernels.launch_hopper_forward(problem, recorder, o.transpose(1, 2), own.norms())
        return [o]

    options = (*call.norm, *call.terms)
    return run_recorded("packed_on_chip", inputs, options, ("o",), first_call)[0]
