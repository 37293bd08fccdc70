"""Backward on the GPU. With w_ij = m_ij h(s_ij), f_i = gain * n_i ** -alpha, dw_ij = do_i . v_j:

    ds_ij = m_ij dw_ij h'(s_ij)            dv_j = sum_i f_i w_ij do_i
    dq_i = scale * f_i sum_j ds_ij k_j     dk_j = scale * sum_i f_i ds_ij q_i

Two kernels, each with the scores made again: one goes over keys for a block of queries (dq), one
over queries for a block of keys (dk, dv). Sums are in registers, so nothing is added in memory.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.activations import in_kernels, is_builtin
from flashpoint.ops.gpu.call import Problem, prepare
from flashpoint.ops.gpu.portable import whole_heads
from flashpoint.ops.gpu.portable.backward_dkdv import backward_dkdv_kernel
from flashpoint.ops.gpu.portable.backward_dq import backward_dq_kernel
from flashpoint.ops.gpu.portable.backward_scored import launch_scored
from flashpoint.ops.gpu.replay import Recorder, only, run_recorded
from flashpoint.ops.gpu.tiles.measured import autotuned
from flashpoint.ops.gpu.tiles.table import dkdv_tiles, dq_tiles
from flashpoint.ops.spec import Terms


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
        problem = Problem.dense(*tensors, terms)
        return [*grads, *differentiate(problem, recorder, do, grads, 0, need_dbias, need_dmask)]

    options = (*terms, need_dbias, need_dmask)
    return run_recorded("backward", inputs, options, ("dq", "dk", "dv"), first_call)


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
        problem = Problem.packed(*tensors, *longest, terms)
        do = do.transpose(0, 1).unsqueeze(0)
        return [*grads, *differentiate(problem, recorder, do, grads, 1, need_dbias, need_dmask)]

    options = (*longest, *terms, need_dbias, need_dmask)
    return run_recorded("backward_varlen", inputs, options, ("dq", "dk", "dv"), first_call)


def _grads(recorder: Recorder, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    named = {"dq": q, "dk": k, "dv": v}
    return [recorder.empty(name, x.shape, q.dtype) for name, x in named.items()]


def differentiate(
    problem: Problem,
    recorder: Recorder,
    do: Tensor,
    grads: list[Tensor],
    parts: int,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """Write dq, dk and dv to grads, laid out as ``store_rows`` says; gives dbias and dmask."""
    needs = ((problem.bias, need_dbias), (problem.mask, need_dmask))
    if problem.is_empty:
        recorder.is_repeatable = False
        for grad in grads:
            grad.zero_()
        return [torch.zeros_like(x) for x, need in needs if need and x is not None]
    arguments = gradient_arguments(problem)
    if whole_heads.suits(problem):
        whole_heads.launch_whole_backward(problem, recorder, do, grads, arguments, parts)
        return []
    kernels = dispatch.backward_kernels(problem, do)
    if kernels is not None:
        kernels.launch_hopper_backward(problem, recorder, do, grads, arguments)
    else:
        launch_tiled(problem, recorder, do, grads, arguments, parts)
    return [
        launch_scored(problem, recorder, do, arguments, is_bias=is_bias)
        for (_, need), is_bias in zip(needs, (True, False), strict=True)
        if need
    ]


def gradient_arguments(problem: Problem) -> dict[str, Any]:
    """What every kernel of backward takes, by name."""
    key = problem.terms.activation
    own = {"GRADIENT": in_kernels(key)[1], "IS_BUILTIN": is_builtin(key)}
    return problem.arguments() | own


def launch_tiled(
    problem: Problem, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], parts: int = 0,
) -> None:
    """Write dq, dk and dv by the portable kernels, laid out as ``store_rows`` says."""
    arguments = arguments | {"PARTS": parts}
    _launch_dkdv(problem, recorder, do, grads, arguments)
    _launch_dq(problem, recorder, do, grads[0], arguments)


def _launch_dkdv(
    problem: Problem, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> None:
    own = {"dk": grads[1], "dv": grads[2], "ONE_RANGE": problem.hides_nothing}
    if arguments["NORM"] != "constant":
        own["shrink"], own["shrink_ds"] = problem.row_shrinks()

    def launch(recorder: Recorder, tiles: dict[str, Any]) -> None:
        num_blocks = triton.cdiv(problem.num_keys, tiles["BLOCK_N"])
        programs = num_blocks * problem.k.shape[1] * problem.num_samples
        everything = problem.inputs(tiles, do) | arguments | own
        kernel = backward_dkdv_kernel
        recorder.launch(kernel, programs, only(kernel, everything) | tiles)

    launch(recorder, autotuned("dkdv", problem, launch) or dkdv_tiles(problem))


def _launch_dq(
    problem: Problem, recorder: Recorder, do: Tensor, dq: Tensor, arguments: dict[str, Any]
) -> None:
    def launch(recorder: Recorder, tiles: dict[str, Any]) -> None:
        num_blocks = triton.cdiv(problem.num_queries, tiles["BLOCK_M"])
        everything = problem.inputs(tiles, do) | arguments
        everything |= {"dq": dq, "ONE_RANGE": problem.hides_nothing}
        programs = num_blocks * problem.q_heads * problem.num_samples
        kernel = backward_dq_kernel
        recorder.launch(kernel, programs, only(kernel, everything) | tiles)

    launch(recorder, autotuned("dq", problem, launch) or dq_tiles(problem))
