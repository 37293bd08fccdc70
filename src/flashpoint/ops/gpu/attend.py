"""The operator on the GPU: dense and varlen calls, forward and backward, by whoever serves them.

A first call of a kind goes through the table in ``dispatch``; later ones are replays.
"""

from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.activations import in_kernels, is_builtin
from flashpoint.ops.gpu.call import Call, prepare
from flashpoint.ops.gpu.portable.backward_scored import launch_scored
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.replay import Recorder, Role, run_recorded
from flashpoint.ops.spec import Terms


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
) -> Tensor:
    """[B, Hq, Lq, Dv] from q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv]."""
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, lengths=key_lengths)

    def first_call(recorder: Recorder) -> list[Tensor]:
        return [attend(Call.dense(*inputs.values(), terms), recorder, Layout.HEADS_FIRST)]

    return run_recorded("forward", inputs, terms, (Role.O,), first_call)[0]


def launch_forward_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    terms: Terms,
) -> Tensor:
    """[Tq, Hq, Dv] from q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]."""
    ends = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_k}
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, **ends)
    longest = (max_seqlen_q, max_seqlen_k)

    def first_call(recorder: Recorder) -> list[Tensor]:
        call = Call.varlen(*inputs.values(), *longest, terms)
        return [attend(call, recorder, Layout.HEADS_LAST)]

    return run_recorded("forward_varlen", inputs, (*longest, *terms), (Role.O,), first_call)[0]


def attend(call: Call, recorder: Recorder, layout: Layout) -> Tensor:
    """The result, by the kernels that serve the call, which must take its norms if it has any."""
    B, H, L, _ = call.q.shape
    shape = (B, H, L) if layout is Layout.HEADS_FIRST else (B, L, H)
    shape = shape[1:] if call.is_varlen else shape
    o = recorder.empty(Role.O, (*shape, call.v.shape[3]), call.q.dtype)
    if call.is_empty:
        recorder.is_repeatable = False
        return o.zero_()
    dispatch.choose(call).forward().launch(call, recorder, o, layout)
    return o


def launch_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's shape and dtype."""
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, lengths=key_lengths, do=do)

    def first_call(recorder: Recorder) -> list[Tensor]:
        *tensors, do = inputs.values()
        grads = _grads(recorder, q, k, v)
        call, needs = Call.dense(*tensors, terms), (need_dbias, need_dmask)
        return [*grads, *differentiate(call, recorder, do, grads, Layout.HEADS_FIRST, *needs)]

    options = (*terms, need_dbias, need_dmask)
    return run_recorded("backward", inputs, options, (Role.DQ, Role.DK, Role.DV), first_call)


def launch_backward_varlen(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's shape and dtype."""
    ends = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_k}
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, **ends, do=do)
    longest = (max_seqlen_q, max_seqlen_k)

    def first_call(recorder: Recorder) -> list[Tensor]:
        *tensors, do = inputs.values()
        grads = _grads(recorder, q, k, v)
        call, needs = Call.varlen(*tensors, *longest, terms), (need_dbias, need_dmask)
        do = do.transpose(0, 1).unsqueeze(0)
        return [*grads, *differentiate(call, recorder, do, grads, Layout.HEADS_LAST, *needs)]

    options = (*longest, *terms, need_dbias, need_dmask)
    outputs = (Role.DQ, Role.DK, Role.DV)
    return run_recorded("backward_varlen", inputs, options, outputs, first_call)


def _grads(recorder: Recorder, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    held = {Role.DQ: q, Role.DK: k, Role.DV: v}
    return [recorder.empty(role, x.shape, q.dtype) for role, x in held.items()]


def differentiate(
    call: Call,
    recorder: Recorder,
    do: Tensor,
    grads: list[Tensor],
    layout: Layout,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """Write dq, dk and dv to grads; gives dbias and dmask if needed."""
    needs = ((call.bias, need_dbias), (call.mask, need_dmask))
    if call.is_empty:
        recorder.is_repeatable = False
        for grad in grads:
            grad.zero_()
        return [torch.zeros_like(x) for x, need in needs if need and x is not None]
    arguments = gradient_arguments(call)
    kernels = dispatch.choose(call, do).backward()
    kernels.launch_backward(call, recorder, do, grads, arguments, layout)
    return [
        launch_scored(call, recorder, do, arguments, is_bias=is_bias)
        for (_, need), is_bias in zip(needs, (True, False), strict=True)
        if need
    ]


def gradient_arguments(call: Call) -> dict[str, Any]:
    """What every kernel of backward takes, by name."""
    key = call.terms.activation
    own = {"GRADIENT": in_kernels(key)[1], "IS_BUILTIN": is_builtin(key)}
    return call.arguments() | own
