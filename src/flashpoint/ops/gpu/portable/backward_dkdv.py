"""dk and dv on the GPU: a program goes over the queries that see a block of keys."""

import triton
import triton.language as tl

from flashpoint.ops.gpu.normalizer import add_of_sums, normalizer_of
from flashpoint.ops.gpu.portable.blocks import (
    HEADS_LAST,
    add_product,
    clear_between,
    dot_fp32,
    finish_scores,
    gradient_of_scores,
    in_window,
    load_rows,
    load_scored,
    queries_of_block,
    sequence,
    store_rows,
    unmasked,
)


@triton.jit
def add_dkdv(
    dk, dv, k, v, i_begin, i_end,
    q, do, bias, mask, normalizers, offsets, slopes,
    q_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
    b, batch, h, j0, q_start, num_queries, num_keys, existing,
    left, right, scale, bias_number, gain, alpha, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr, IS_VARLEN: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """Add the shares of queries [i_begin, i_end) of one head to dk and dv.

    Tiles are transposed, [BLOCK_N keys, BLOCK_M queries]: both products take them as they are.
    """
    keys = j0 + tl.arange(0, BLOCK_N)[:, None]
    shift = num_keys - num_queries
    clean: tl.constexpr = IS_VARLEN and MASKED
    for i0 in tl.range(i_begin, i_end, BLOCK_M):
        row, end = q_start + i0, q_start + num_queries
        q_tile = load_rows(q, q_strides, batch, h, row, end, D, BLOCK_M, BLOCK_D, TMA, clean)
        do_tile = load_rows(do, do_strides, batch, h, row, end, DV, BLOCK_M, BLOCK_DV, TMA, clean)
        s = dot_fp32(k, q_tile.T, BLOCK_D, BLOCK_DV)  # [BLOCK_N, BLOCK_M]
        dw = dot_fp32(v, do_tile.T, BLOCK_D, BLOCK_DV)
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
        if NORMALIZER != "constant":
            factor = normalizer_of(
                rows, gain, alpha, normalizers, normalizer_strides, b, h, shift, num_queries,
                existing, num_keys, left, right, NORMALIZER, POWER,
            )[None, :]
            dw = add_of_sums(
                dw * factor, w, offsets, slopes, normalizer_strides, b, h, queries, num_queries
            )
            w *= factor
        if MASK == "float":
            dw *= m.to(tl.float32)
        ds = gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN)
        if MASK == "bool" or MASK == "words":
            left_over = unmasked(
                mask, mask_strides, b, h, queries, keys, j0, num_queries, num_keys, MASK, BLOCK_N
            )
            w, ds = tl.where(left_over, w, 0.0), tl.where(left_over, ds, 0.0)
        if MASKED:
            seen = in_window(queries, keys, shift, existing, left, right)
            seen &= queries < num_queries
            w, ds = tl.where(seen, w, 0.0), tl.where(seen, ds, 0.0)
        if SHRINKS:
            w *= shrink
            ds *= shrink_ds
        dv = add_product(dv, w, do_tile, WIDE, BLOCK_D, BLOCK_DV)
        dk = add_product(dk, ds, q_tile, WIDE, BLOCK_D, BLOCK_DV)
    return dk, dv


@triton.jit
def backward_dkdv_kernel(
    q, k, v, do, dk, dv,                           # pointers; the first four descriptors where TMA
    bias, mask, normalizers, offsets, slopes, lengths, cu_q, cu_k,  # pointers or None
    q_strides, k_strides, v_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
    Hq, Lq, Lk, Tk, left, right, scale, bias_number, gain, alpha, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, ENDS_EARLY: tl.constexpr, ONE_RANGE: tl.constexpr,
    TMA: tl.constexpr, LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """dk_j = scale * sum_i f_i ds_ij q_i and dv_j = sum_i f_i w_ij do_i for a block of keys.

    The sums go over all query heads that share the key head.
    """
    num_blocks = tl.cdiv(Lk, BLOCK_N)
    num_heads = Hq // GROUP
    pid = tl.program_id(0)
    block = pid % num_blocks
    j0 = block * BLOCK_N
    kv_head = pid // num_blocks % num_heads
    b = pid // num_blocks // num_heads
    batch, q_start, k_start, num_queries, num_keys, existing = sequence(
        b, lengths, cu_q, cu_k, Lq, Lk
    )
    IS_VARLEN: tl.constexpr = cu_q is not None
    if IS_VARLEN:
        clear_between(
            dk, b, kv_head, block, num_blocks, cu_k, k_start, num_keys, Tk, num_heads,
            D, BLOCK_N, BLOCK_D, HEADS_LAST,
        )
        clear_between(
            dv, b, kv_head, block, num_blocks, cu_k, k_start, num_keys, Tk, num_heads,
            DV, BLOCK_N, BLOCK_DV, HEADS_LAST,
        )
    if j0 >= num_keys:
        return
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
    # Where some keys do not exist all is masked, and nothing is done where none does. No branches:
    # Triton 3.5 fails to compile a loop whose bounds come out of nested ones.
    full_begin = tl.where(j1 > existing, begin, full_begin)
    full_end = tl.where(j1 > existing, begin, full_end)
    begin, full_begin, full_end, stop = (
        tl.where(j0 >= existing, 0, begin), tl.where(j0 >= existing, 0, full_begin),
        tl.where(j0 >= existing, 0, full_end), tl.where(j0 >= existing, 0, stop),
    )
    if ONE_RANGE:
        full_end = stop
    for member in range(GROUP):
        h = kv_head * GROUP + member
        if right is not None:
            dk_acc, dv_acc = add_dkdv(
                dk_acc, dv_acc, k_tile, v_tile, begin, tl.minimum(full_begin, stop),
                q, do, bias, mask, normalizers, offsets, slopes,
                q_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
                b, batch, h, j0, q_start, num_queries, num_keys, existing,
                left, right, scale, bias_number, gain, alpha, shrink, shrink_ds,
                WEIGH, GRADIENT, IS_BUILTIN, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, NORMALIZER,
                POWER, SHRINKS, WIDE, True, IS_VARLEN, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            )
        dk_acc, dv_acc = add_dkdv(
            dk_acc, dv_acc, k_tile, v_tile, full_begin, full_end,
            q, do, bias, mask, normalizers, offsets, slopes,
            q_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
            b, batch, h, j0, q_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, gain, alpha, shrink, shrink_ds,
            WEIGH, GRADIENT, IS_BUILTIN, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, NORMALIZER,
            POWER, SHRINKS, WIDE, False, IS_VARLEN, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
        if not ONE_RANGE:
            dk_acc, dv_acc = add_dkdv(
                dk_acc, dv_acc, k_tile, v_tile, full_end, stop,
                q, do, bias, mask, normalizers, offsets, slopes,
                q_strides, do_strides, bias_strides, mask_strides, normalizer_strides,
                b, batch, h, j0, q_start, num_queries, num_keys, existing,
                left, right, scale, bias_number, gain, alpha, shrink, shrink_ds,
                WEIGH, GRADIENT, IS_BUILTIN, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, NORMALIZER,
                POWER, SHRINKS, WIDE, True, IS_VARLEN, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            )
    factor = gain if NORMALIZER == "constant" else 1.0
    dk_acc *= scale * factor / shrink_ds if SHRINKS else scale * factor
    dv_acc *= factor / shrink if SHRINKS else factor
    store_rows(
        dk, dk_acc, batch, kv_head, row, end, num_heads, Lk, D, BLOCK_N, BLOCK_D, LAYOUT
    )
    store_rows(
        dv, dv_acc, batch, kv_head, row, end, num_heads, Lk, DV, BLOCK_N, BLOCK_DV, LAYOUT
    )
