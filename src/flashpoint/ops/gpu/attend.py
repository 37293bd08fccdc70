"""The operator on the GPU: dense and varlen calls, forward and backward, by whoever serves them.

A first call of a kind goes through the table in ``dispatch``; later ones are replays.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.activations import in_kernels, is_builtin
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.portable import whole_heads
from flashpoint.ops.gpu.portable.addition import launch_addition
from flashpoint.ops.gpu.portable.backward_rows import SumGradients, launch_rows
from flashpoint.ops.gpu.portable.backward_scored import launch_scored
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.portable.masks import read_mask
from flashpoint.ops.gpu.replay import Recorder, Role, run_recorded
from flashpoint.ops.spec import Terms

# tensors of calls, in the order in which ``Call`` takes them
DENSE = (Role.Q, Role.K, Role.V, Role.BIAS, Role.MASK, Role.LENGTHS)
VARLEN = (*DENSE[:5], Role.CU_Q, Role.CU_K)
GRADIENTS = (Role.DQ, Role.DK, Role.DV)
Inputs = dict[Role, Tensor | None]


def launch_forward(
    has_sums: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
    totals: Tensor | None = None,
    overwrites: bool = False,
) -> list[Tensor]:
    """[B, Hq, Lq, Dv] from q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv].

    With sums those of each row's weights, [B, Hq, Lq], behind it; with logs [2, B, Hq, Lq]. With
    ``totals``, fp32 with dense rows, the result is added to these instead, or overwrites them, and
    the sums are all.
    """
    inputs: Inputs = dict(zip(DENSE, (q, k, v, bias, mask, key_lengths), strict=True))
    outputs = results_of(has_sums)
    if totals is not None:
        inputs, outputs = inputs | {Role.TOTALS: totals}, outputs[1:]

    def first_call(recorder: Recorder, prepared: Inputs) -> list[Tensor]:
        tensors = [*prepared.values()][:6]
        call = Call.dense(*tensors, terms)._replace(has_sums=has_sums)
        call = call._replace(totals=totals, overwrites=overwrites)
        return attend(call, recorder, Layout.HEADS_FIRST)

    return run_recorded("forward", inputs, (has_sums, overwrites, terms), outputs, first_call)


def launch_forward_varlen(
    has_sums: bool,
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
) -> list[Tensor]:
    """[Tq, Hq, Dv] from q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]; sums [Hq, Tq]."""
    tensors = (q, k, v, bias, mask, cu_seqlens_q, cu_seqlens_k)
    inputs: Inputs = dict(zip(VARLEN, tensors, strict=True))
    longest = (max_seqlen_q, max_seqlen_k)

    def first_call(recorder: Recorder, prepared: Inputs) -> list[Tensor]:
        call = Call.varlen(*prepared.values(), *longest, terms)._replace(has_sums=has_sums)
        return attend(call, recorder, Layout.HEADS_LAST)

    options = (has_sums, *longest, terms)
    return run_recorded("forward_varlen", inputs, options, results_of(has_sums), first_call)


def results_of(has_sums: bool) -> tuple[Role, ...]:
    """What forward gives."""
    return (Role.O, Role.SUMS) if has_sums else (Role.O,)


def attend(call: Call, recorder: Recorder, layout: Layout) -> list[Tensor]:
    """The result, and the rows' sums of weights, heads first, where the call has them.

    By the kernels that serve the call, which must take its norms if it has any. With totals the
    result goes to these instead, by a launch of its own where the kernels do not add.
    """
    sums = [_empty_sums(call, recorder)] if call.has_sums else []
    if call.is_empty:
        recorder.is_repeatable = False
        if call.totals is None:
            sums = [_empty_result(call, recorder, layout), *sums]
        elif call.overwrites:
            call.totals.zero_()
        return [x.zero_() for x in sums]
    kernels = dispatch.choose(call)
    call = read_mask(call, recorder, kernels)
    if call.totals is not None and kernels.adds:
        kernels.forward().launch(call, recorder, None, layout, *sums)
        return sums
    o = _empty_result(call, recorder, layout)
    kernels.forward().launch(call, recorder, o, layout, *sums)
    if call.totals is None:
        return [o, *sums]
    launch_addition(recorder, o, call.totals, {"o": Role.O}, overwrites=call.overwrites)
    return sums


def _empty_sums(call: Call, recorder: Recorder) -> Tensor:
    B, H, L, _ = call.q.shape
    planes = (2,) if call.terms.logs else ()
    heads = (H, L) if call.is_varlen else (B, H, L)
    return recorder.empty(Role.SUMS, (*planes, *heads), torch.float32)


def _empty_result(call: Call, recorder: Recorder, layout: Layout) -> Tensor:
    B, H, L, _ = call.q.shape
    shape = (B, H, L) if layout is Layout.HEADS_FIRST else (B, L, H)
    shape = shape[1:] if call.is_varlen else shape
    return recorder.empty(Role.O, (*shape, call.v.shape[3]), call.q.dtype)


def launch_backward(
    of_sums: Sequence[Tensor | None],
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
    totals: Tensor | None = None,
) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's shape and dtype.

    ``of_sums``: the gradient of the sums, and o and the sums where these divide; or nothing. With
    ``totals``, fp32 with dense rows, dq is added to these instead, and not among the results.
    """
    tensors = (q, k, v, bias, mask, key_lengths, do)
    inputs: Inputs = dict(zip((*DENSE, Role.DO), tensors, strict=True))
    outputs = GRADIENTS
    if of_sums:
        inputs |= name_sums(of_sums)
    if totals is not None:
        inputs, outputs = inputs | {Role.TOTALS: totals}, GRADIENTS[1:]

    def first_call(recorder: Recorder, prepared: Inputs) -> list[Tensor]:
        *tensors, do = [*prepared.values()][:7]
        grads = _grads(recorder, q, k, v)
        sums = sums_given(prepared, Layout.HEADS_FIRST)
        rest = (do, grads, Layout.HEADS_FIRST, need_dbias, need_dmask, sums)
        call = Call.dense(*tensors, terms)._replace(totals=totals)
        return [*grads, *differentiate(call, recorder, *rest)][totals is not None :]

    options = (len(of_sums), terms, need_dbias, need_dmask)
    return run_recorded("backward", inputs, options, outputs, first_call)


def launch_backward_varlen(
    of_sums: Sequence[Tensor | None],
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
    """As ``launch_backward``, of sequences that follow one another."""
    tensors = (q, k, v, bias, mask, cu_seqlens_q, cu_seqlens_k, do)
    inputs: Inputs = dict(zip((*VARLEN, Role.DO), tensors, strict=True))
    inputs |= name_sums(of_sums)
    longest = (max_seqlen_q, max_seqlen_k)

    def first_call(recorder: Recorder, prepared: Inputs) -> list[Tensor]:
        *tensors, do = [*prepared.values()][:8]
        grads = _grads(recorder, q, k, v)
        given = sums_given(prepared, Layout.HEADS_LAST)
        assert do is not None
        do = do.transpose(0, 1).unsqueeze(0)
        rest = (do, grads, Layout.HEADS_LAST, need_dbias, need_dmask, given)
        return [*grads, *differentiate(Call.varlen(*tensors, *longest, terms), recorder, *rest)]

    options = (len(of_sums), *longest, terms, need_dbias, need_dmask)
    return run_recorded("backward_varlen", inputs, options, GRADIENTS, first_call)


def name_sums(of_sums: Sequence[Tensor | None]) -> Inputs:
    """dsums, o and sums by role; nothing where a call has no sums."""
    return dict(zip((Role.DSUMS, Role.O, Role.SUMS), of_sums, strict=False))


def sums_given(inputs: Inputs, layout: Layout) -> SumGradients | None:
    """What ``name_sums`` left among a call's inputs; None where it has no sums."""
    if Role.SUMS not in inputs:
        return None
    return SumGradients(inputs[Role.DSUMS], inputs[Role.O], inputs[Role.SUMS], layout)


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

    ``given`` is what there is besides where the call has sums. With totals dq is added to these,
    by the last launch, and what grads have of it is nothing to rely on.
    """
    call = call._replace(has_sums=given is not None, bias_has_gradient=need_dbias)
    needs = ((call.bias, need_dbias), (call.mask, need_dmask))
    if call.is_empty:
        recorder.is_repeatable = False
        for grad in grads:
            grad.zero_()
        return [torch.zeros_like(x) for x, need in needs if need and x is not None]
    kernels = dispatch.choose(call, do)
    call = read_mask(call, recorder, kernels)
    arguments = gradient_arguments(call)
    if given is not None:
        scales_do = kernels is dispatch.HOPPER
        do, arguments = launch_rows(call, recorder, do, given, arguments, scales_do=scales_do)
    made = kernels.backward().launch_backward(call, recorder, do, grads, arguments, layout) or {}
    scored = finish_scored(call, recorder, do, arguments, made, need_dbias, need_dmask)
    if Role.TOTALS in made:
        assert not scored  # what is added must be the last launch
    elif call.totals is not None:
        launch_addition(recorder, grads[0], call.totals, {"o": Role.DQ})
    return scored


def finish_scored(
    call: Call, recorder: Recorder, do: Tensor, arguments: dict[str, Any],
    made: Mapping[Role, Tensor], need_dbias: bool, need_dmask: bool,
) -> list[Tensor]:
    """dbias and dmask if needed: of what backward has made, or by a kernel of their own."""
    scored = []
    if need_dbias and Role.DBIAS in made:
        recorder.is_repeatable = False  # what is added up here would not be again
        scored.append(whole_heads.add_up_bias(call, made[Role.DBIAS]))
    elif need_dbias:
        scored.append(launch_scored(call, recorder, do, arguments, is_bias=True))
    if need_dmask:
        scored.append(launch_scored(call, recorder, do, arguments, is_bias=False))
    return scored


def gradient_arguments(call: Call) -> dict[str, Any]:
    """What every kernel of backward takes, by name."""
    key = call.terms.activation
    _, gradient = in_kernels(key, rounded=call.rounds_weights)
    own = {"GRADIENT": gradient, "IS_BUILTIN": is_builtin(key), "offsets": None, "slopes": None}
    return call.arguments() | own
