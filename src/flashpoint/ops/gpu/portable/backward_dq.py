"""dq on the GPU: a program goes over the keys that a block of queries sees."""

import triton
import triton.language as tl

from flashpoint.ops.gpu.activations import log_of
from flashpoint.ops.gpu.normalizer import load_of_rows, normalizer_of
from flashpoint.ops.gpu.portable.blocks import (
    HEADS_LAST,
    add_product,
    clear_between,
    dot_fp32,
    finish_scores,
    gradient_of_scores,
    in_window,
    keys_of_block,
    load_rows,
    load_scored,
    sequence,
    store_rows,
    unmasked,
)


@triton.jit
def add_dq(
    dq, q, do, factor, offset, slope, j_begin, j_end,
    k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
    b, batch, h, kv_head, i0, k_start, num_queries, num_keys, existing,
    left, right, scale, bias_number, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, HAS_OFFSETS: tl.constexpr, HAS_SLOPES: tl.constexpr,
    MASKED: tl.constexpr, ENDS_EARLY: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """Add ds @ k of keys [j_begin, j_end) to dq: [BLOCK_M, BLOCK_D].

    HAS_OFFSETS: of dw * factor + offset, with HAS_SLOPES + slope * log w; else the factor comes
    behind the sum.
    """
    queries = i0 + tl.arange(0, BLOCK_M)[:, None]
    clean: tl.constexpr = ENDS_EARLY and MASKED
    for j0 in tl.range(j_begin, j_end, BLOCK_N):
        row, end = k_start + j0, k_start + existing
        k_tile = load_rows(k, k_strides, batch, kv_head, row, end, D, BLOCK_N, BLOCK_D, TMA, clean)
        v_tile = load_rows(
            v, v_strides, batch, kv_head, row, end, DV, BLOCK_N, BLOCK_DV, TMA, False
        )
        s = dot_fp32(q, k_tile.T, BLOCK_D, BLOCK_DV)  # [BLOCK_M, BLOCK_N]
        dw = dot_fp32(do, v_tile.T, BLOCK_D, BLOCK_DV)
        keys = j0 + tl.arange(0, BLOCK_N)[None, :]
        s = finish_scores(
            s, queries, keys, bias, bias_strides, b, h, num_queries, num_keys, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        )
        if HAS_OFFSETS:
            dw = dw * factor[:, None] + offset[:, None]
        if MASK == "float":
            m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys)
        if HAS_SLOPES:
            w = WEIGH(s)
            if MASK == "float":
                w *= m.to(tl.float32)
            dw += slope[:, None] * log_of(w)
        if MASK == "float":
            dw *= m.to(tl.float32)
        ds = gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN)
        if MASK == "bool" or MASK == "words":
            left_over = unmasked(
                mask, mask_strides, b, h, queries, keys, j0, num_queries, num_keys, MASK, BLOCK_N
            )
            ds = tl.where(left_over, ds, 0.0)
        if MASKED:
            shift = num_keys - num_queries
            ds = tl.where(in_window(queries, keys, shift, existing, left, right), ds, 0.0)
        if SHRINKS:
            ds *= shrink_ds
        dq = add_product(dq, ds, k_tile, WIDE, BLOCK_D, BLOCK_DV)
    return dq


@triton.jit
def backward_dq_kernel(
    q, k, v, do, dq,                               # pointers; all but dq descriptors where TMA
    bias, mask, normalizers, offsets, slopes, lengths, cu_q, cu_k,  # pointers or None
    q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
    Hq, Lq, Lk, Tq, left, right, scale, bias_number, gain, alpha, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, ENDS_EARLY: tl.constexpr, ONE_RANGE: tl.constexpr,
    TMA: tl.constexpr, LAYOUT: tl.constexpr,
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
    if cu_q is not None:
        clear_between(
            dq, b, h, block, num_blocks, cu_q, q_start, num_queries, Tq, Hq, D, BLOCK_M, BLOCK_D,
            HEADS_LAST,
        )
    if i0 >= num_queries:
        return
    shift, row, end = num_keys - num_queries, q_start + i0, q_start + num_queries
    q_tile = load_rows(q, q_strides, batch, h, row, end, D, BLOCK_M, BLOCK_D, TMA, False)
    do_tile = load_rows(do, do_strides, batch, h, row, end, DV, BLOCK_M, BLOCK_DV, TMA, False)
    HAS_OFFSETS: tl.constexpr = offsets is not None
    rows = i0 + tl.arange(0, BLOCK_M)
    factor = normalizer_of(
        rows, gain, alpha, normalizers, normalizer_strides, b, h, shift,
        num_queries, existing, num_keys, left, right, NORMALIZER, POWER,
    )
    HAS_SLOPES: tl.constexpr = slopes is not None
    offset, slope = factor, factor
    if HAS_OFFSETS:
        offset = load_of_rows(offsets, normalizer_strides, b, h, rows, num_queries)
    if HAS_SLOPES:
        slope = load_of_rows(slopes, normalizer_strides, b, h, rows, num_queries)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    i1 = tl.minimum(i0 + BLOCK_M, num_queries)
    begin, full_begin, full_end, stop = keys_of_block(
        i0, i1, shift, existing, left, right, BLOCK_N
    )
    if ONE_RANGE:
        full_end = stop
    if left is not None:
        acc = add_dq(
            acc, q_tile, do_tile, factor, offset, slope, begin, tl.minimum(full_begin, stop),
            k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
            b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, shrink_ds, WEIGH, GRADIENT, IS_BUILTIN,
            D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, WIDE, HAS_OFFSETS, HAS_SLOPES, True,
            ENDS_EARLY, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
    acc = add_dq(
        acc, q_tile, do_tile, factor, offset, slope, full_begin, full_end,
        k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
        b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
        left, right, scale, bias_number, shrink_ds, WEIGH, GRADIENT, IS_BUILTIN,
        D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, WIDE, HAS_OFFSETS, HAS_SLOPES, False,
        ENDS_EARLY, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
    )
    if not ONE_RANGE:
        acc = add_dq(
            acc, q_tile, do_tile, factor, offset, slope, full_end, stop,
            k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
            b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, shrink_ds, WEIGH, GRADIENT, IS_BUILTIN,
            D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, WIDE, HAS_OFFSETS, HAS_SLOPES, True,
            ENDS_EARLY, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
    if HAS_OFFSETS:
        acc *= scale
    else:
        factor *= scale
        acc *= (factor / shrink_ds if SHRINKS else factor)[:, None]
    store_rows(dq, acc, batch, h, row, end, Hq, Lq, D, BLOCK_M, BLOCK_D, LAYOUT)
