"""Gradients of a bias or a float mask: dbias_ij = ds_ij, dmask_ij = dw_ij h(s_ij).

A program sums one block of it over everything that broadcasts there, so that no two add to the
same place. Where that leaves little to do side by side, there are several sums for a place, which
are added up behind the kernel: of a share of the samples where all share a block; of each head of
each sample for a number, one per head, one per key, and for a number one per block of queries.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import gpu_of
from flashpoint.ops.gpu.normalizer import add_of_sums, normalizer_of
from flashpoint.ops.gpu.portable.blocks import (
    dot_fp32,
    finish_scores,
    gradient_of_scores,
    in_window,
    keys_of_block,
    load_rows,
    load_scored,
    sequence,
    unmasked,
)
from flashpoint.ops.gpu.replay import Recorder, only
from flashpoint.ops.gpu.tiles.table import scored_tiles

PROGRAMS = 4  # of a multiprocessor, side by side


@triton.jit
def gradient_tile(
    q, k, v, do, bias, mask, normalizers, offsets, slopes,
    q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
    b, batch, h, kv_head, i0, j0, q_start, k_start, num_queries, num_keys, existing,
    left, right, scale, bias_number, gain, alpha,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr, IS_BIAS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr,
    MASK: tl.constexpr, NORMALIZER: tl.constexpr, POWER: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """One head's share of a block: [BLOCK_M, BLOCK_N]."""
    q_row, q_end = q_start + i0, q_start + num_queries
    k_row, k_end = k_start + j0, k_start + existing
    q_tile = load_rows(q, q_strides, batch, h, q_row, q_end, D, BLOCK_M, BLOCK_D, TMA, False)
    k_tile = load_rows(k, k_strides, batch, kv_head, k_row, k_end, D, BLOCK_N, BLOCK_D, TMA, False)
    s = dot_fp32(q_tile, k_tile.T, BLOCK_D, BLOCK_DV)
    do_tile = load_rows(do, do_strides, batch, h, q_row, q_end, DV, BLOCK_M, BLOCK_DV, TMA, False)
    v_tile = load_rows(
        v, v_strides, batch, kv_head, k_row, k_end, DV, BLOCK_N, BLOCK_DV, TMA, False
    )
    dw = dot_fp32(do_tile, v_tile.T, BLOCK_D, BLOCK_DV)
    rows = i0 + tl.arange(0, BLOCK_M)
    queries, keys = rows[:, None], j0 + tl.arange(0, BLOCK_N)[None, :]
    s = finish_scores(
        s, queries, keys, bias, bias_strides, b, h, num_queries, num_keys, scale, bias_number,
        HAS_SCALE, HAS_BIAS_NUMBER,
    )
    shift = num_keys - num_queries
    factor = normalizer_of(
        rows, gain, alpha, normalizers, normalizer_strides, b, h, shift, num_queries, existing,
        num_keys, left, right, NORMALIZER, POWER,
    )
    w = WEIGH(s)
    if MASK == "float":
        m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys).to(
            tl.float32
        )
        w *= m
    dw = add_of_sums(
        dw * factor[:, None], w, offsets, slopes, normalizer_strides, b, h, queries, num_queries
    )
    seen = in_window(queries, keys, shift, existing, left, right) & (queries < num_queries)
    if MASK == "bool" or MASK == "words":
        seen &= unmasked(
            mask, mask_strides, b, h, queries, keys, j0, num_queries, num_keys, MASK, BLOCK_N
        )
    elif MASK == "float" and IS_BIAS:
        dw *= m
    tile = gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN) if IS_BIAS else dw * WEIGH(s)
    return tl.where(seen, tile, 0.0)


@triton.jit
def backward_scored_kernel(
    q, k, v, do, grad,
    bias, mask, normalizers, offsets, slopes, lengths, cu_q, cu_k,
    q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
    B, Hq, Lq, Lk, left, right, scale, bias_number, gain, alpha,
    grad_B, grad_H, grad_Lq, grad_Lk,              # the sums' sizes; all samples in grad_B shares
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr, IS_BIAS: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr,
    TMA: tl.constexpr,
    ALL_QUERIES: tl.constexpr, ALL_KEYS: tl.constexpr,  # sum over this axis
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """The sum of all heads' shares of one block of dbias or dmask."""
    ONE_BLOCK: tl.constexpr = ALL_KEYS or not ALL_QUERIES  # of queries, for a program
    i_blocks = tl.cdiv(Lq, BLOCK_M) if ONE_BLOCK else 1
    j_blocks = 1 if ALL_KEYS else tl.cdiv(Lk, BLOCK_N)
    pid = tl.program_id(0)
    j_own = pid % j_blocks * BLOCK_N
    i_own = pid // j_blocks % i_blocks * BLOCK_M
    grad_h = pid // j_blocks // i_blocks % grad_H
    grad_b = pid // j_blocks // i_blocks // grad_H
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    share = tl.cdiv(B, grad_B)
    for b in range(grad_b * share, tl.minimum((grad_b + 1) * share, B)):
        batch, q_start, k_start, num_queries, num_keys, existing = sequence(
            b, lengths, cu_q, cu_k, Lq, Lk
        )
        for at_h in range(0, tl.where(grad_H == 1, Hq, 1)):
            h = grad_h + at_h
            i_end = tl.minimum(num_queries, i_own + BLOCK_M) if ONE_BLOCK else num_queries
            for i0 in range(i_own, i_end, BLOCK_M):
                i1 = tl.minimum(i0 + BLOCK_M, num_queries)
                begin, _, _, end = keys_of_block(
                    i0, i1, num_keys - num_queries, existing, left, right, BLOCK_N
                )
                j_begin = begin if ALL_KEYS else tl.maximum(begin, j_own)
                j_end = end if ALL_KEYS else tl.minimum(end, j_own + BLOCK_N)
                for j0 in range(j_begin, j_end, BLOCK_N):
                    acc += gradient_tile(
                        q, k, v, do, bias, mask, normalizers, offsets, slopes,
                        q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides,
                        normalizer_strides,
                        b, batch, h, h // GROUP, i0, j0, q_start, k_start, num_queries, num_keys,
                        existing, left, right, scale, bias_number, gain, alpha,
                        WEIGH, GRADIENT, IS_BUILTIN, IS_BIAS, D, DV, HAS_SCALE, HAS_BIAS_NUMBER,
                        MASK, NORMALIZER, POWER, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                    )
    if ALL_QUERIES:
        acc = tl.sum(acc, 0, keep_dims=True)
    if ALL_KEYS:
        acc = tl.sum(acc, 1, keep_dims=True)
    if ALL_QUERIES:
        rows = i_own // BLOCK_M + tl.arange(0, 1)[:, None]
    else:
        rows = i_own + tl.arange(0, BLOCK_M)[:, None]
    columns = j_own + tl.arange(0, 1 if ALL_KEYS else BLOCK_N)[None, :]
    at = grad + (tl.cast(grad_b, tl.int64) * grad_H + grad_h) * grad_Lq * grad_Lk
    at += rows.to(tl.int64) * grad_Lk + columns
    tl.store(at, acc.to(grad.dtype.element_ty), mask=(rows < grad_Lq) & (columns < grad_Lk))


def count_shares(call: Call, programs: int) -> int:
    """Shares of the samples that give each multiprocessor its programs; sums of each are kept."""
    wanted = PROGRAMS * gpu_of(call.q.device).processors // programs
    share = triton.cdiv(call.num_samples, max(1, min(wanted, call.num_samples)))
    return triton.cdiv(call.num_samples, share)  # none of them is empty


def launch_scored(
    call: Call, recorder: Recorder, do: Tensor, arguments: dict[str, Any], *, is_bias: bool
) -> Tensor:
    """dbias or dmask, dense, in its input's shape and dtype."""
    x = call.bias if is_bias else call.mask
    assert x is not None
    recorder.is_repeatable = False  # two such launches would share their names
    tiles = scored_tiles(call)
    i_blocks = triton.cdiv(call.num_queries, tiles["BLOCK_M"])
    j_blocks = triton.cdiv(call.num_keys, tiles["BLOCK_N"])
    all_queries = x.shape[2] == 1 and call.num_queries > 1
    all_keys = x.shape[3] == 1 and call.num_keys > 1
    programs = i_blocks if all_keys or not all_queries else 1
    programs *= 1 if all_keys else j_blocks
    sums = x.new_empty(x.shape)
    if all_queries or all_keys:
        shape = (call.num_samples, call.q_heads, *x.shape[2:])
        if all_queries and all_keys:
            shape = (*shape[:2], i_blocks, 1)
        sums = x.new_empty(shape, dtype=torch.float32)
    elif x.shape[0] == 1 and (shares := count_shares(call, programs * x.shape[1])) > 1:
        sums = x.new_empty((shares, *x.shape[1:]), dtype=torch.float32)
    programs *= sums.shape[0] * sums.shape[1]
    sizes = dict(zip(("grad_B", "grad_H", "grad_Lq", "grad_Lk"), sums.shape, strict=True))
    own = {"grad": sums, "B": call.num_samples, "IS_BIAS": is_bias}
    own |= {"ALL_QUERIES": all_queries, "ALL_KEYS": all_keys}
    arguments = call.inputs(tiles, do) | arguments | own | sizes
    kernel = backward_scored_kernel
    recorder.launch(kernel, programs, only(kernel, arguments) | tiles, call.backward_roles())
    return sums.sum_to_size(x.shape).to(x.dtype)
