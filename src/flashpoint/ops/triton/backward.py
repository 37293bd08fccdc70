"""Backward on the GPU. With w_ij = m_ij h(s_ij), f_i = gain * n_i ** -alpha, dw_ij = do_i . v_j:

    ds_ij = m_ij dw_ij h'(s_ij)            dv_j = sum_i f_i w_ij do_i
    dq_i = scale * f_i sum_j ds_ij k_j     dk_j = scale * sum_i f_i ds_ij q_i

Two kernels, each with the scores made again: one goes over keys for a block of queries (dq), one
over queries for a block of keys (dk, dv). Sums are in registers, so nothing is added in memory.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.spec import Terms, length_power
from flashpoint.ops.triton import hopper
from flashpoint.ops.triton.activations import in_kernels, is_builtin
from flashpoint.ops.triton.autotune import autotuned
from flashpoint.ops.triton.problem import Problem, prepare
from flashpoint.ops.triton.replay import Recorder, only, run_recorded
from flashpoint.ops.triton.scored import launch_scored
from flashpoint.ops.triton.tiles import (
    add_product,
    finish_scores,
    gradient_of_scores,
    in_window,
    keys_of_block,
    load_rows,
    load_scored,
    normalizer_of,
    queries_of_block,
    sequence,
    store_rows,
)
from flashpoint.ops.triton.tuning import dkdv_tiles, dq_tiles


@triton.jit
def add_dq(
    dq, q, do, j_begin, j_end,
    k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
    b, batch, h, kv_head, i0, k_start, num_queries, num_keys, existing,
    left, right, scale, bias_number, shrink_ds,
    GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    SHRINKS: tl.constexpr, MASKED: tl.constexpr, ENDS_EARLY: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """Add ds @ k of keys [j_begin, j_end) to dq: [BLOCK_M, BLOCK_D]."""
    queries = i0 + tl.arange(0, BLOCK_M)[:, None]
    clean: tl.constexpr = ENDS_EARLY and MASKED
    for j0 in tl.range(j_begin, j_end, BLOCK_N):
        row, end = k_start + j0, k_start + existing
        k_tile = load_rows(k, k_strides, batch, kv_head, row, end, D, BLOCK_N, BLOCK_D, TMA, clean)
        v_tile = load_rows(
            v, v_strides, batch, kv_head, row, end, DV, BLOCK_N, BLOCK_DV, TMA, False
        )
        s = tl.dot(q, k_tile.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        dw = tl.dot(do, v_tile.T, input_precision="ieee")
        keys = j0 + tl.arange(0, BLOCK_N)[None, :]
        s = finish_scores(
            s, queries, keys, bias, bias_strides, b, h, num_queries, num_keys, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        )
        if MASK == "float":
            m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys)
            dw *= m.to(tl.float32)
        ds = gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN)
        if MASK == "bool":
            m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys)
            ds = tl.where(m != 0, ds, 0.0)
        if MASKED:
            shift = num_keys - num_queries
            ds = tl.where(in_window(queries, keys, shift, existing, left, right), ds, 0.0)
        if SHRINKS:
            ds *= shrink_ds
        dq = add_product(dq, ds.to(k_tile.dtype), k_tile)
    return dq


@triton.jit
def backward_dq_kernel(
    q, k, v, do, dq,                               # pointers; all but dq descriptors where TMA
    bias, mask, normalizers, lengths, cu_q, cu_k,  # pointers or None
    q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides, norm_strides,
    Hq, Lq, Lk, left, right, scale, bias_number, gain, shrink_ds,
    GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr, NORM: tl.constexpr,
    SHRINKS: tl.constexpr, ENDS_EARLY: tl.constexpr, ONE_RANGE: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """dq_i = scale * f_i * sum_j ds_ij k_j for a block of queries."""
    num_blocks = tl.cdiv(Lq, BLOCK_M)
    pid = tl.program_id(0)
    block = num_blocks - 1 - pid % num_blocks  # causal: those with the most keys first
    h = pid // num_blocks % Hq
    b = pid // num_blocks // Hq
    batch, q_start, k_start, num_queries, num_keys, existing = sequence(
        b, lengths, cu_q, cu_k, Lq, Lk
    )
    i0 = block * BLOCK_M
    if i0 >= num_queries:
        return
    shift, row, end = num_keys - num_queries, q_start + i0, q_start + num_queries
    q_tile = load_rows(q, q_strides, batch, h, row, end, D, BLOCK_M, BLOCK_D, TMA, False)
    do_tile = load_rows(do, do_strides, batch, h, row, end, DV, BLOCK_M, BLOCK_DV, TMA, False)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    i1 = tl.minimum(i0 + BLOCK_M, num_queries)
    begin, full_begin, full_end, stop = keys_of_block(
        i0, i1, shift, existing, left, right, BLOCK_N
    )
    if ONE_RANGE:
        full_end = stop
    if left is not None:
        acc = add_dq(
            acc, q_tile, do_tile, begin, tl.minimum(full_begin, stop),
            k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
            b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, shrink_ds, GRADIENT, IS_BUILTIN,
            D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, True, ENDS_EARLY, TMA,
            BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
    acc = add_dq(
        acc, q_tile, do_tile, full_begin, full_end,
        k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
        b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
        left, right, scale, bias_number, shrink_ds, GRADIENT, IS_BUILTIN,
        D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, False, ENDS_EARLY, TMA,
        BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
    )
    if not ONE_RANGE:
        acc = add_dq(
            acc, q_tile, do_tile, full_end, stop,
            k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
            b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, shrink_ds, GRADIENT, IS_BUILTIN,
            D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, True, ENDS_EARLY, TMA,
            BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
    factor = scale * normalizer_of(
        i0 + tl.arange(0, BLOCK_M), gain, normalizers, norm_strides, b, h, shift, num_queries,
        existing, num_keys, left, right, NORM,
    )
    acc *= (factor / shrink_ds if SHRINKS else factor)[:, None]
    packed: tl.constexpr = cu_q is not None
    store_rows(dq, acc, batch, h, row, end, Hq, Lq, D, BLOCK_M, BLOCK_D, packed)


@triton.jit
def add_dkdv(
    dk, dv, k, v, i_begin, i_end,
    q, do, bias, mask, normalizers,
    q_strides, do_strides, bias_strides, mask_strides, norm_strides,
    b, batch, h, j0, q_start, num_queries, num_keys, existing,
    left, right, scale, bias_number, gain, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr, NORM: tl.constexpr,
    SHRINKS: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """Add the shares of queries [i_begin, i_end) of one head to dk and dv.

    Tiles are transposed, [BLOCK_N keys, BLOCK_M queries]: both products take them as they are.
    """
    keys = j0 + tl.arange(0, BLOCK_N)[:, None]
    shift = num_keys - num_queries
    clean: tl.constexpr = PACKED and MASKED
    for i0 in tl.range(i_begin, i_end, BLOCK_M):
        row, end = q_start + i0, q_start + num_queries
        q_tile = load_rows(q, q_strides, batch, h, row, end, D, BLOCK_M, BLOCK_D, TMA, clean)
        do_tile = load_rows(do, do_strides, batch, h, row, end, DV, BLOCK_M, BLOCK_DV, TMA, clean)
        s = tl.dot(k, q_tile.T, input_precision="ieee")  # [BLOCK_N, BLOCK_M]
        dw = tl.dot(v, do_tile.T, input_precision="ieee")
        rows = i0 + tl.arange(0, BLOCK_M)
        queries = rows[None, :]
        s = finish_scores(
            s, queries, keys, bias, bias_strides, b, h, num_queries, num_keys, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        )
        w = WEIGH(s)
        if MASK == "float":
            m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys)
            w *= m.to(tl.float32)
            dw *= m.to(tl.float32)
        ds = gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN)
        if MASK == "bool":
            m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys)
            w, ds = tl.where(m != 0, w, 0.0), tl.where(m != 0, ds, 0.0)
        if MASKED:
            seen = in_window(queries, keys, shift, existing, left, right)
            seen &= queries < num_queries
            w, ds = tl.where(seen, w, 0.0), tl.where(seen, ds, 0.0)
        if NORM != "constant":
            factor = normalizer_of(
                rows, gain, normalizers, norm_strides, b, h, shift, num_queries, existing,
                num_keys, left, right, NORM,
            )[None, :]
            w *= factor
            ds *= factor
        if SHRINKS:
            w *= shrink
            ds *= shrink_ds
        dv = add_product(dv, w.to(do_tile.dtype), do_tile)
        dk = add_product(dk, ds.to(q_tile.dtype), q_tile)
    return dk, dv


@triton.jit
def backward_dkdv_kernel(
    q, k, v, do, dk, dv,                           # pointers; the first four descriptors where TMA
    bias, mask, normalizers, lengths, cu_q, cu_k,  # pointers or None
    q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides, norm_strides,
    Hq, Lq, Lk, left, right, scale, bias_number, gain, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr, NORM: tl.constexpr,
    SHRINKS: tl.constexpr, ENDS_EARLY: tl.constexpr, ONE_RANGE: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """dk_j = scale * sum_i f_i ds_ij q_i and dv_j = sum_i f_i w_ij do_i for a block of keys.

    The sums go over all query heads that share the key head.
    """
    num_blocks = tl.cdiv(Lk, BLOCK_N)
    num_heads = Hq // GROUP
    pid = tl.program_id(0)
    j0 = pid % num_blocks * BLOCK_N
    kv_head = pid // num_blocks % num_heads
    b = pid // num_blocks // num_heads
    batch, q_start, k_start, num_queries, num_keys, existing = sequence(
        b, lengths, cu_q, cu_k, Lq, Lk
    )
    if j0 >= num_keys:
        return
    packed: tl.constexpr = cu_q is not None
    shift, row, end = num_keys - num_queries, k_start + j0, k_start + num_keys
    seen_end = k_start + existing
    k_tile = load_rows(
        k, k_strides, batch, kv_head, row, seen_end, D, BLOCK_N, BLOCK_D, TMA, ENDS_EARLY
    )
    v_tile = load_rows(
        v, v_strides, batch, kv_head, row, seen_end, DV, BLOCK_N, BLOCK_DV, TMA, ENDS_EARLY
    )
    dk_acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_acc = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    j1 = tl.minimum(j0 + BLOCK_N, num_keys)
    begin, full_begin, full_end, stop = queries_of_block(
        j0, j1, shift, num_queries, left, right, BLOCK_M
    )
    if j0 >= existing:  # nobody sees these keys
        begin, full_begin, full_end, stop = 0, 0, 0, 0
    elif j1 > existing:  # some do not exist: mask everywhere
        full_begin, full_end = begin, begin
    if ONE_RANGE:
        full_end = stop
    for member in range(GROUP):
        h = kv_head * GROUP + member
        if right is not None:
            dk_acc, dv_acc = add_dkdv(
                dk_acc, dv_acc, k_tile, v_tile, begin, tl.minimum(full_begin, stop),
                q, do, bias, mask, normalizers,
                q_strides, do_strides, bias_strides, mask_strides, norm_strides,
                b, batch, h, j0, q_start, num_queries, num_keys, existing,
                left, right, scale, bias_number, gain, shrink, shrink_ds,
                WEIGH, GRADIENT, IS_BUILTIN, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, NORM,
                SHRINKS, True, packed, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            )
        dk_acc, dv_acc = add_dkdv(
            dk_acc, dv_acc, k_tile, v_tile, full_begin, full_end,
            q, do, bias, mask, normalizers,
            q_strides, do_strides, bias_strides, mask_strides, norm_strides,
            b, batch, h, j0, q_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, gain, shrink, shrink_ds,
            WEIGH, GRADIENT, IS_BUILTIN, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, NORM,
            SHRINKS, False, packed, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
        if not ONE_RANGE:
            dk_acc, dv_acc = add_dkdv(
                dk_acc, dv_acc, k_tile, v_tile, full_end, stop,
                q, do, bias, mask, normalizers,
                q_strides, do_strides, bias_strides, mask_strides, norm_strides,
                b, batch, h, j0, q_start, num_queries, num_keys, existing,
                left, right, scale, bias_number, gain, shrink, shrink_ds,
                WEIGH, GRADIENT, IS_BUILTIN, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, NORM,
                SHRINKS, True, packed, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            )
    factor = gain if NORM == "constant" else 1.0
    dk_acc *= scale * factor / shrink_ds if SHRINKS else scale * factor
    dv_acc *= factor / shrink if SHRINKS else factor
    store_rows(
        dk, dk_acc, batch, kv_head, row, end, num_heads, Lk, D, BLOCK_N, BLOCK_D, packed
    )
    store_rows(
        dv, dv_acc, batch, kv_head, row, end, num_heads, Lk, DV, BLOCK_N, BLOCK_DV, packed
    )


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
        shapes = (q.shape, k.shape, v.shape)
        problem = Problem.dense(*tensors, terms)
        return _launch(problem, recorder, do, shapes, need_dbias, need_dmask)

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
        shapes = (q.shape, k.shape, v.shape)
        problem = Problem.packed(*tensors, *longest, terms)
        do = do.transpose(0, 1).unsqueeze(0)
        return _launch(problem, recorder, do, shapes, need_dbias, need_dmask)

    options = (*longest, *terms, need_dbias, need_dmask)
    return run_recorded("backward_varlen", inputs, options, ("dq", "dk", "dv"), first_call)


def _launch(
    problem: Problem,
    recorder: Recorder,
    do: Tensor,
    shapes: tuple[torch.Size, torch.Size, torch.Size],
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    named = zip(("dq", "dk", "dv"), shapes, strict=True)
    grads = [recorder.empty(name, shape, do.dtype) for name, shape in named]
    needs = ((problem.bias, need_dbias), (problem.mask, need_dmask))
    if problem.is_empty:
        recorder.is_repeatable = False
        zeros = [torch.zeros_like(x) for x, need in needs if need and x is not None]
        return [x.zero_() for x in grads] + zeros
    arguments = gradient_arguments(problem)
    kernels = hopper.backward_kernels(problem, do)
    if kernels is not None:
        kernels.launch_hopper_backward(problem, recorder, do, grads, arguments)
    else:
        launch_tiled(problem, recorder, do, grads, arguments)
    for (_, need), is_bias in zip(needs, (True, False), strict=True):
        if need:
            grads.append(launch_scored(problem, recorder, do, arguments, is_bias=is_bias))
    return grads


def gradient_arguments(problem: Problem) -> dict[str, Any]:
    """What every kernel of backward takes, by name."""
    key = problem.terms.activation
    own = {"GRADIENT": in_kernels(key)[1], "IS_BUILTIN": is_builtin(key)}
    return problem.arguments() | own


def launch_tiled(
    problem: Problem, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> None:
    """Write dq, dk and dv by the portable kernels."""
    _launch_dkdv(problem, recorder, do, grads, arguments)
    _launch_dq(problem, recorder, do, grads[0], arguments)


def _launch_dkdv(
    problem: Problem, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> None:
    own = {"dk": grads[1], "dv": grads[2], "ONE_RANGE": problem.hides_nothing}
    usual = problem.gain * length_power(problem.num_keys, problem.terms.alpha)
    if arguments["NORM"] != "constant" and 0.0 < usual < math.inf:
        # These weights are normalized, so they need less of it.
        own |= {name: arguments[name] / usual for name in ("shrink", "shrink_ds")}

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
