"""The operator on the GPU: dense and varlen calls, forward and backward, by whoever serves them.

A first call of a kind goes through the table in ``dispatch``; later ones are replays.
"""

from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.activations import in_kernels, is_builtin
from flashpoint.ops.gpu.call import Call, prepare
from flashpoint.ops.gpu.portable.backward_rows import SumGradients, launch_rows
from flashpoint.ops.gpu.portable.backward_scored import launch_scored
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.replay import Recorder, Role, run_recorded
from flashpoint.ops.spec import Terms

WITH_SUMS = (Role.O, Role.SUMS)
GRADIENTS = (Role.DQ, Role.DK, Role.DV)


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


def launch_forward_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """The same and the rows' sums of weights, [B, Hq, Lq]."""
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, lengths=key_lengths)

    def first_call(recorder: Recorder) -> list[Tensor]:
        call = Call.dense(*inputs.values(), terms)
        return attend_sums(call, recorder, Layout.HEADS_FIRST)

    o, sums = run_recorded("forward_sums", inputs, terms, WITH_SUMS, first_call)
    return o, sums


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


def launch_forward_varlen_sums(
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
) -> tuple[Tensor, Tensor]:
    """The same and the rows' sums of weights, [Hq, Tq]."""
    ends = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_k}
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, **ends)
    longest = (max_seqlen_q, max_seqlen_k)

    def first_call(recorder: Recorder) -> list[Tensor]:
        call = Call.varlen(*inputs.values(), *longest, terms)
        return attend_sums(call, recorder, Layout.HEADS_LAST)

    options = (*longest, *terms)
    o, sums = run_recorded("forward_varlen_sums", inputs, options, WITH_SUMS, first_call)
    return o, sums


def attend(call: Call, recorder: Recorder, layout: Layout) -> Tensor:
    """The result, by the kernels that serve the call, which must take its norms if it has any."""
    o = _empty_result(call, recorder, layout)
    if call.is_empty:
        recorder.is_repeatable = False
        return o.zero_()
    dispatch.choose(call).forward().launch(call, recorder, o, layout)
    return o


def attend_sums(call: Call, recorder: Recorder, layout: Layout) -> list[Tensor]:
    """The same and the rows' sums of weights, heads first."""
    call = call._replace(has_sums=True)
    o = _empty_result(call, recorder, layout)
    B, H, L, _ = call.q.shape
    planes = (2,) if call.terms.logs else ()
    heads = (H, L) if call.is_varlen else (B, H, L)
    sums = recorder.empty(Role.SUMS, (*planes, *heads), torch.float32)
    if call.is_empty:
        recorder.is_repeatable = False
        return [o.zero_(), sums.zero_()]
    dispatch.choose(call).forward().launch(call, recorder, o, layout, sums)
    return [o, sums]


def _empty_result(call: Call, recorder: Recorder, layout: Layout) -> Tensor:
    B, H, L, _ = call.q.shape
    shape = (B, H, L) if layout is Layout.HEADS_FIRST else (B, L, H)
    shape = shape[1:] if call.is_varlen else shape
    return recorder.empty(Role.O, (*shape, call.v.shape[3]), call.q.dtype)


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
    return run_recorded("backward", inputs, options, GRADIENTS, first_call)


def launch_backward_sums(
    do: Tensor,
    dsums: Tensor | None,
    o: Tensor | None,
    sums: Tensor | None,
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
    """The same where the rows' sums have gradients, or divide the result o."""
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, lengths=key_lengths, do=do)
    inputs |= prepare(o=o, sums=sums, dsums=dsums)

    def first_call(recorder: Recorder) -> list[Tensor]:
        *tensors, do, o, sums, dsums = inputs.values()
        grads = _grads(recorder, q, k, v)
        call, needs = Call.dense(*tensors, terms), (need_dbias, need_dmask)
        given = SumGradients(dsums, o, sums, Layout.HEADS_FIRST)
        rest = (do, grads, Layout.HEADS_FIRST, *needs, given)
        return [*grads, *differentiate(call, recorder, *rest)]

    options = (*terms, need_dbias, need_dmask)
    return run_recorded("backward_sums", inputs, options, GRADIENTS, first_call)


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
    return run_recorded("backward_varlen", inputs, options, GRADIENTS, first_call)


def launch_backward_varlen_sums(
    do: Tensor,
    dsums: Tensor | None,
    o: Tensor | None,
    sums: Tensor | None,
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
    """The same where the rows' sums have gradients, or divide the result o."""
    ends = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_k}
    inputs = prepare(q=q, k=k, v=v, bias=bias, mask=mask, **ends, do=do)
    inputs |= prepare(o=o, sums=sums, dsums=dsums)
    longest = (max_seqlen_q, max_seqlen_k)

    def first_call(recorder: Recorder) -> list[Tensor]:
        *tensors, do, o, sums, dsums = inputs.values()
        grads = _grads(recorder, q, k, v)
        call, needs = Call.varlen(*tensors, *longest, terms), (need_dbias, need_dmask)
        given = SumGradients(dsums, o, sums, Layout.HEADS_LAST)
        rest = (do.transpose(0, 1).unsqueeze(0), grads, Layout.HEADS_LAST, *needs, given)
        return [*grads, *differentiate(call, recorder, *rest)]

    options = (*longest, *terms, need_dbias, need_dmask)
    return run_recorded("backward_varlen_sums", inputs, options, GRADIENTS, first_call)


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
    given: SumGradients | None = None,
) -> list[Tensor]:
    """Write dq, dk and dv to grads; gives dbias and dmask if needed.

    ``given`` is what there is besides where the call has sums.
    """
    call = call._replace(has_sums=given is not None)
    needs = ((call.bias, need_dbias), (call.mask, need_dmask))
    if call.is_empty:
        recorder.is_repeatable = False
        for grad in grads:
            grad.zero_()
        return [torch.zeros_like(x) for x, need in needs if need and x is not None]
    arguments = gradient_arguments(call)
    kernels = dispatch.choose(call, do)
    if given is not None:
        scales_do = kernels is dispatch.HOPPER
        do, arguments = launch_rows(call, recorder, do, given, arguments, scales_do=scales_do)
    kernels.backward().launch_backward(call, recorder, do, grads, arguments, layout)
    return [
        launch_scored(call, recorder, do, arguments, is_bias=is_bias)
        for (_, need), is_bias in zip(needs, (True, False), strict=True)
        if need
    ]


def gradient_arguments(call: Call) -> dict[str, Any]:
    """What every kernel of backward takes, by name."""
    key = call.terms.activation
    own = {"GRADIENT": in_kernels(key)[1], "IS_BUILTIN": is_builtin(key), "offsets": None}
    own["slopes"] = None
    return call.arguments() | own
