"""Packed q, k and v on the GPU. By the length of a call and by what kernels serve it:

    up to 64 tokens   one kernel, norms inside (``whole``)
    else              norms in a pass of their own (``packed_heads``), then the general kernels

The general kernels read v where it lies in qkv, and write dq, dk and dv where they lie in dqkv.
Those for Hopper (``hopper_norm``) normalise q themselves in forward, over 192 to 256 tokens k too,
and take dq and dk through the norms as they write them; else another pass does so in place.
Nothing but the inputs is kept for backward.
"""

import torch
from torch import Tensor

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.call import Problem, prepare
from flashpoint.ops.gpu.packed_call import PackedCall
from flashpoint.ops.gpu.portable import backward, forward, whole_heads
from flashpoint.ops.gpu.portable.qk_norm import NO_NORMS
from flashpoint.ops.gpu.portable.qk_norm_passes import denormalise_heads, normalise_heads
from flashpoint.ops.gpu.replay import Recorder, run_recorded
from flashpoint.ops.spec import NormTerms, Terms

ON_CHIP = range(192, 257)  # tokens for which it pays to normalise k there: docs/log.md


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
    inputs = prepare(
        qkv=qkv, q_gain=q_gain, k_gain=k_gain, bias=bias, mask=mask, lengths=key_lengths
    )

    def first_call(recorder: Recorder) -> list[Tensor]:
        *own, bias, mask, lengths = inputs.values()
        call = PackedCall(*own, norm, terms)
        recorder.name_parts("qkv", ("q", "k", "v"))
        problem = call.problem(bias, mask, lengths)
        kernels = None if problem.is_empty else dispatch.forward_kernels(problem)
        takes_q = kernels is not None and dispatch.takes_norms(problem)
        norms = call.norms()  # those left to the kernel
        if not (whole_heads.suits(problem) or takes_q):
            problem, _ = _normalised(call, problem, recorder)
            norms = NO_NORMS
        elif takes_q and qkv.shape[1] not in ON_CHIP:
            problem, _ = _normalised(call.of_keys(), problem, recorder)
            norms = call.of_queries().norms()
        return [forward.attend(problem, recorder, heads_last=True, norms=norms)]

    options = (*norm, *terms)
    return run_recorded("packed", inputs, options, ("o",), first_call)[0]


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
    inputs = prepare(
        qkv=qkv, q_gain=q_gain, k_gain=k_gain, bias=bias, mask=mask, lengths=key_lengths, do=do
    )
    kinds = {"dq_gain": norm.q_kind, "dk_gain": norm.k_kind}
    gains = {"dq_gain": q_gain, "dk_gain": k_gain}
    gains = {name: gain for name, gain in gains.items() if gain is not None}
    shared = [name for name in gains if kinds[name] != "none" and qkv.numel() > 0]

    def first_call(recorder: Recorder) -> list[Tensor]:
        *own, bias, mask, lengths, do = inputs.values()
        assert do is not None
        call = PackedCall(*own, norm, terms)
        dqkv = recorder.empty("dqkv", qkv.shape, qkv.dtype)
        recorder.name_parts("qkv", ("q", "k", "v"))
        recorder.name_parts("dqkv", ("dq", "dk", "dv"))
        grads = [x.transpose(1, 2) for x in dqkv.unbind(2)]
        do, problem = do.transpose(1, 2), call.problem(bias, mask, lengths)
        scored: list[Tensor] = []
        kernels = None if problem.is_empty else dispatch.backward_kernels(problem, do)
        if whole_heads.suits(problem):
            arguments = backward.gradient_arguments(problem)
            shares = whole_heads.launch_whole_backward(
                problem, recorder, do, grads, arguments, 3, call.norms()
            )
        elif kernels is not None and dispatch.takes_norms(problem):
            problem, statistics = _normalised(call, problem, recorder, has_statistics=True)
            arguments = backward.gradient_arguments(problem)
            recorder.rename({"q_raw": "q", "k_raw": "k"})
            shares = kernels.launch_hopper_backward(
                problem, recorder, do, grads, arguments, call.norms() | call.raws() | statistics
            )
        else:
            problem, _ = _normalised(call, problem, recorder)
            needs = (need_dbias, need_dmask)
            scored = backward.differentiate(problem, recorder, do, grads, 3, *needs)
            shares = denormalise_heads(call, dqkv, lengths, recorder)
        return [dqkv, *(shares[name] for name in shared), *scored]

    options = (*norm, *terms, need_dbias, need_dmask)
    outputs = ("dqkv", *shared)
    dqkv, *rest = run_recorded("packed_backward", inputs, options, outputs, first_call)
    shares = dict(zip(shared, rest, strict=False))
    of_gains = [
        shares[name].sum(0).to(gain.dtype) if name in shares else torch.zeros_like(gain)
        for name, gain in gains.items()
    ]
    return [dqkv, *of_gains, *rest[len(shared):]]


def _normalised(
    call: PackedCall, problem: Problem, recorder: Recorder, *, has_statistics: bool = False
) -> tuple[Problem, dict[str, Tensor]]:
    """The problem of q-hat and k-hat; if asked for, what gradients need of rows, by name."""
    q, k, statistics = normalise_heads(call, problem.lengths, recorder, has_statistics)
    return problem._replace(q=q.transpose(1, 2), k=k.transpose(1, 2)), statistics
