"""Forward on the GPU: a program computes a block of queries over all keys that they see."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.activations import log_of
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.normalizer import normalizer_of, over_sum
from flashpoint.ops.gpu.portable.blocks import (
    HEADS_FIRST,
    HEADS_LAST,
    Layout,
    add_product,
    clear_between,
    dot_fp32,
    finish_scores,
    in_window,
    keys_of_block,
    load_rows,
    load_scored,
    sequence,
    store_rows,
    store_sums,
    unmasked,
)
from flashpoint.ops.gpu.replay import Recorder, only
from flashpoint.ops.gpu.tiles.autotune import autotuned
from flashpoint.ops.gpu.tiles.table import forward_tiles


@triton.jit
def attend_keys(
    o, sums, logs, q, j_begin, j_end,
    k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
    b, batch, h, kv_head, i0, k_start, num_queries, num_keys, existing,
    left, right, scale, bias_number, shrink,
    WEIGH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, SUMS: tl.constexpr, LOGS: tl.constexpr,
    MASKED: tl.constexpr, ENDS_EARLY: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """Add h(q @ k.T) @ v of keys [j_begin, j_end) to o: [BLOCK_M, BLOCK_DV].

    SUMS: and w = h(q @ k.T) to sums: [BLOCK_M]. LOGS: and w log w to logs.
    """
    queries = i0 + tl.arange(0, BLOCK_M)[:, None]
    for j0 in tl.range(j_begin, j_end, BLOCK_N):
        row, end = k_start + j0, k_start + existing
        k_tile = load_rows(k, k_strides, batch, kv_head, row, end, D, BLOCK_N, BLOCK_D, TMA, False)
        s = dot_fp32(q, k_tile.T, BLOCK_D, BLOCK_DV)  # [BLOCK_M, BLOCK_N]
        keys = j0 + tl.arange(0, BLOCK_N)[None, :]
        s = finish_scores(
            s, queries, keys, bias, bias_strides, b, h, num_queries, num_keys, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        )
        w = WEIGH(s)
        if MASK == "float":
            m = load_scored(mask, mask_strides, b, h, queries, keys, num_queries, num_keys)
            w *= m.to(tl.float32)
        elif MASK != "none":
            left_over = unmasked(
                mask, mask_strides, b, h, queries, keys, j0, num_queries, num_keys, MASK, BLOCK_N
            )
            w = tl.where(left_over, w, 0.0)
        if MASKED:
            shift = num_keys - num_queries
            w = tl.where(in_window(queries, keys, shift, existing, left, right), w, 0.0)
        if SUMS:
            sums += tl.sum(w, 1)
        if LOGS:
            logs += tl.sum(w * log_of(w), 1)
        if SHRINKS:
            w *= shrink
        v_tile = load_rows(
            v, v_strides, batch, kv_head, row, end, DV, BLOCK_N, BLOCK_DV, TMA,
            ENDS_EARLY and MASKED,
        )
        o = add_product(o, w, v_tile, WIDE, BLOCK_D, BLOCK_DV)
    return o, sums, logs


@triton.jit
def forward_kernel(
    q, k, v, o, sums,                              # q, k, v descriptors where TMA; sums or None
    bias, mask, normalizers, lengths, cu_q, cu_k,  # pointers or None
    q_strides, k_strides, v_strides, bias_strides, mask_strides, normalizer_strides,
    Hq, Lq, Lk, Tq, left, right,                   # varlen: the longest sequence's L, all Tq
    scale, bias_number, gain, alpha, shrink, moved, log_moved, plane,  # plane: from sums to logs
    WEIGH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr, BY_SUM: tl.constexpr,
    LOGS: tl.constexpr, SHRINKS: tl.constexpr, WIDE: tl.constexpr,
    ENDS_EARLY: tl.constexpr, ONE_RANGE: tl.constexpr,
    TMA: tl.constexpr, LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """o_i = gain * n_i ** -alpha * sum_j m_ij h(scale * q_i . k_j + b_ij) v_j, and sums.

    BY_SUM: the weights' sum and gain * n_i ** -alpha divide. Of the sums, ``moved`` is the scale's
    share. No running maximum, no rescaling: key blocks add up. Key blocks that no query of the
    program sees are left out, those that all see are not masked.
    """
    SUMS: tl.constexpr = sums is not None
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
            o, b, h, block, num_blocks, cu_q, q_start, num_queries, Tq, Hq, DV, BLOCK_M, BLOCK_DV,
            HEADS_LAST,
        )
        if SUMS:
            clear_between(
                sums, b, h, block, num_blocks, cu_q, q_start, num_queries, Tq, Hq, 1, BLOCK_M, 1,
                HEADS_FIRST,
            )
            clear_between(  # the same once more where there are no logs
                sums + plane, b, h, block, num_blocks, cu_q, q_start, num_queries, Tq, Hq, 1,
                BLOCK_M, 1, HEADS_FIRST,
            )
    if i0 >= num_queries:
        return
    shift, row, end = num_keys - num_queries, q_start + i0, q_start + num_queries
    q_tile = load_rows(q, q_strides, batch, h, row, end, D, BLOCK_M, BLOCK_D, TMA, False)
    acc, total = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    logs = tl.zeros([BLOCK_M], tl.float32)
    i1 = tl.minimum(i0 + BLOCK_M, num_queries)
    begin, full_begin, full_end, stop = keys_of_block(
        i0, i1, shift, existing, left, right, BLOCK_N
    )
    if ONE_RANGE:  # nothing to hide: keys behind the last are zeros, and so is what they add
        full_end = stop
    if left is not None:
        acc, total, logs = attend_keys(
            acc, total, logs, q_tile, begin, tl.minimum(full_begin, stop),
            k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
            b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, shrink,
            WEIGH, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, WIDE, SUMS, LOGS, True,
            ENDS_EARLY, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
    acc, total, logs = attend_keys(
        acc, total, logs, q_tile, full_begin, full_end,
        k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
        b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
        left, right, scale, bias_number, shrink,
        WEIGH, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, WIDE, SUMS, LOGS, False,
        ENDS_EARLY, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
    )
    if not ONE_RANGE:
        acc, total, logs = attend_keys(
            acc, total, logs, q_tile, full_end, stop,
            k, v, bias, mask, k_strides, v_strides, bias_strides, mask_strides,
            b, batch, h, h // GROUP, i0, k_start, num_queries, num_keys, existing,
            left, right, scale, bias_number, shrink,
            WEIGH, D, DV, HAS_SCALE, HAS_BIAS_NUMBER, MASK, SHRINKS, WIDE, SUMS, LOGS, True,
            ENDS_EARLY, TMA, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )
    factor = normalizer_of(
        i0 + tl.arange(0, BLOCK_M), gain, alpha, normalizers, normalizer_strides, b, h, shift,
        num_queries, existing, num_keys, left, right, NORMALIZER, POWER,
    )
    if BY_SUM:
        factor = over_sum(total, factor)
    acc *= (factor / shrink if SHRINKS else factor)[:, None]
    T = Tq if cu_q is not None else Lq
    store_sums(
        sums, total, logs, moved, log_moved, plane, batch, h, row, end, Hq, T, BLOCK_M, LOGS
    )
    store_rows(o, acc, batch, h, row, end, Hq, Lq, DV, BLOCK_M, BLOCK_DV, LAYOUT)


def launch(
    call: Call, recorder: Recorder, o: Tensor, layout: Layout, sums: Tensor | None = None
) -> None:
    """Write the result to o, and the rows' sums, by the kernel that serves every call."""
    one_range = call.hides_nothing and (sums is None or call.ends_in_zeros)
    own = {"o": o, "sums": sums, "plane": call.plane_of(sums)}
    own |= {"ONE_RANGE": one_range, "LAYOUT": int(layout)}
    arguments = call.arguments() | own

    def launch_tiles(recorder: Recorder, tiles: dict[str, Any]) -> None:
        num_blocks = triton.cdiv(call.num_queries, tiles["BLOCK_M"])
        programs = num_blocks * call.q_heads * call.num_samples
        everything = only(forward_kernel, call.inputs(tiles) | arguments) | tiles
        recorder.launch(forward_kernel, programs, everything, call.roles)

    launch_tiles(recorder, autotuned("forward", call, launch_tiles) or forward_tiles(call))
