"""What all kernels share: the sequence a program works on, its tiles, and who sees whom in them.

Axes: a tile of scores is [queries, keys], or [keys, queries] for dk and dv. Positions count
within a sequence; only loads and stores know where in memory a sequence begins.
"""

from enum import IntEnum

import triton
import triton.language as tl


class Layout(IntEnum):
    """How heads lie in what a kernel writes. The value is how many parts a token has of them."""

    HEADS_FIRST = 0  # [B, H, L, D]
    HEADS_LAST = 1  # [B, L, H, D], or [T, H, D] of sequences that follow one another
    PACKED = 3  # a part of [B, L, 3, H, D]


LARGEST_TF32 = tl.constexpr(3.4e38)  # what rounding takes no further than the largest number
# fp32 up to this head dim is multiplied as two numbers of TF32, by three products of tensor cores;
# over it their sums missed the error budget by a tenth
TF32_DIM = tl.constexpr(64)
WORD = tl.constexpr(32)  # keys in a word of a mask
HEADS_FIRST = tl.constexpr(int(Layout.HEADS_FIRST))
HEADS_LAST = tl.constexpr(int(Layout.HEADS_LAST))


@triton.jit
def sequence(
    b, lengths, cu_q, cu_k, Lq, Lk,
):
    """Where sample b is: batch index, first query and key row, numbers of queries and keys.

    The last number is how many of the keys exist.
    """
    if cu_q is not None:  # varlen: all sequences are rows of one sample
        q_start = tl.load(cu_q + b).to(tl.int32)
        k_start = tl.load(cu_k + b).to(tl.int32)
        num_queries = tl.minimum(tl.load(cu_q + b + 1).to(tl.int32) - q_start, Lq)
        num_keys = tl.minimum(tl.load(cu_k + b + 1).to(tl.int32) - k_start, Lk)
        return 0, q_start, k_start, num_queries, num_keys, num_keys
    else:
        existing = Lk
        if lengths is not None:
            existing = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), Lk)
        return b, 0, 0, Lq, Lk, existing


@triton.jit
def load_rows(
    x, strides, b, h, row, end,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
    TMA: tl.constexpr, ENDS_EARLY: tl.constexpr,
):
    """Rows [row, row + ROWS) of a head, zeros from ``end`` on and beyond D: [ROWS, BLOCK_D].

    ENDS_EARLY: memory goes on behind ``end``, and what is there must not be seen.
    """
    r = tl.arange(0, ROWS)
    ok = (r < end - row)[:, None]
    if TMA:
        tile = x.load([b, h, row, 0]).reshape(ROWS, BLOCK_D)
        if ENDS_EARLY:
            tile = tl.where(ok, tile, 0.0)
    else:
        d = tl.arange(0, BLOCK_D)
        if D != BLOCK_D:
            ok = ok & (d < D)[None, :]
        head = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(h, tl.int64) * strides[1]
        at = head + (tl.cast(row, tl.int64) + r)[:, None] * strides[2]
        tile = tl.load(at + d.to(tl.int64)[None, :] * strides[3], mask=ok, other=0.0)
    return tile


@triton.jit
def store_rows(
    x, tile, b, h, row, end, H, L,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, LAYOUT: tl.constexpr,
):
    """Write rows before ``end`` to x, whose heads lie as a ``Layout`` says; all of it is dense."""
    r, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    ok = (r < end - row)[:, None]
    if D != BLOCK_D:
        ok = ok & (d < D)[None, :]
    if LAYOUT != HEADS_FIRST:
        first = tl.cast(b, tl.int64) * L + row
        at = x + ((first + r)[:, None] * (LAYOUT * H) + h) * D + d[None, :]
    else:
        at = x + ((tl.cast(b, tl.int64) * H + h) * L + row) * D + r[:, None] * D + d[None, :]
    tl.store(at, tile.to(x.dtype.element_ty), mask=ok)


@triton.jit
def store_sums(
    sums, total, logs, moved, log_moved, plane, b, h, row, end, H, L,
    ROWS: tl.constexpr, LOGS: tl.constexpr,
):
    """Write rows' sums [ROWS] before ``end``, if wanted, times the scale's share of weights.

    LOGS: and those of w log w, a plane behind them, whose logarithms lack that share, too.
    """
    if sums is not None:
        total *= moved
        store_rows(sums, total[:, None], b, h, row, end, H, L, 1, ROWS, 1, HEADS_FIRST)
    if LOGS:
        logs = logs * moved + log_moved * total
        store_rows(sums + plane, logs[:, None], b, h, row, end, H, L, 1, ROWS, 1, HEADS_FIRST)


@triton.jit
def clear_between(
    x, b, h, block, num_blocks, cu, start, num, T, H,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, LAYOUT: tl.constexpr,
):
    """Zeros for rows that no sequence has: behind sequence b, and before the first.

    x is [T, H, D], or [H, T, D] where its layout is heads first.

    The sequence begins at ``start`` and has ``num`` rows. The programs of one head share the work,
    and mostly there is none.
    """
    step = num_blocks * ROWS
    nothing = tl.zeros([ROWS, BLOCK_D], tl.float32)
    if b == 0:
        before = tl.minimum(start, T)
        for row in tl.range(block * ROWS, before, step):
            store_rows(x, nothing, 0, h, row, before, H, T, D, ROWS, BLOCK_D, LAYOUT)
    is_last = b == tl.num_programs(0) // (num_blocks * H) - 1
    end = tl.where(is_last, T, tl.minimum(tl.load(cu + b + 1).to(tl.int32), T))
    for row in tl.range(start + tl.maximum(num, 0) + block * ROWS, end, step):
        store_rows(x, nothing, 0, h, row, end, H, T, D, ROWS, BLOCK_D, LAYOUT)


@triton.jit
def load_scored(x, strides, b, h, queries, keys, Lq, Lk):
    """The tile of a bias or mask that broadcasts to [B, H, Lq, Lk]; queries and keys are 2-d."""
    at = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(h, tl.int64) * strides[1]
    at += queries.to(tl.int64) * strides[2] + keys.to(tl.int64) * strides[3]
    return tl.load(at, mask=(queries < Lq) & (keys < Lk), other=0)


@triton.jit
def unmasked(
    mask, strides, b, h, queries, keys, j0, Lq, Lk, MASK: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Which keys of a block from j0 on a mask of booleans leaves, by its bytes or its words.

    Queries and keys are 2-d, along their axes; words have zeros behind the last key.
    """
    if MASK == "bool":
        return load_scored(mask, strides, b, h, queries, keys, Lq, Lk) != 0
    else:
        at = mask + tl.cast(b, tl.int64) * strides[0] + tl.cast(h, tl.int64) * strides[1]
        at += queries.to(tl.int64) * strides[2] + j0 // WORD
        word = tl.load(at, mask=queries < Lq, other=0)
        for part in tl.static_range(1, BLOCK_N // WORD):
            later = tl.load(at + part, mask=queries < Lq, other=0)
            word = tl.where(keys - j0 < part * WORD, word, later)
        return (word >> (keys % WORD)) & 1 != 0


@triton.jit
def in_window(queries, keys, shift, existing, left, right):
    """Which keys exist and lie in their query's window; queries and keys broadcast."""
    seen = keys < existing
    if left is not None:
        seen = seen & (keys >= queries + shift - left)
    if right is not None:
        seen = seen & (keys <= queries + shift + right)
    return seen


@triton.jit
def keys_of_block(i0, i1, shift, existing, left, right, BLOCK: tl.constexpr):
    """The key blocks that queries [i0, i1) see: begin, begin and end of the whole ones, end.

    Between the middle two every query sees every key. All but the last are multiples of BLOCK.
    """
    begin, full_begin, end, full_end = 0, 0, existing, existing
    if left is not None:
        begin = tl.maximum(i0 + shift - left, 0) // BLOCK * BLOCK
        full_begin = tl.cdiv(tl.maximum(i1 - 1 + shift - left, 0), BLOCK) * BLOCK
    if right is not None:
        end = tl.minimum(existing, tl.maximum(i1 + shift + right, 0))
        full_end = tl.minimum(existing, tl.maximum(i0 + shift + right + 1, 0))
    full_end = full_end // BLOCK * BLOCK
    full_begin = tl.minimum(full_begin, tl.cdiv(end, BLOCK) * BLOCK)
    return begin, full_begin, tl.maximum(full_end, full_begin), end


@triton.jit
def queries_of_block(j0, j1, shift, Lq, left, right, BLOCK: tl.constexpr):
    """The query blocks that see keys [j0, j1): begin, begin and end of the whole ones, end."""
    begin, full_begin, end, full_end = 0, 0, Lq, Lq
    if right is not None:
        begin = tl.maximum(j0 - shift - right, 0) // BLOCK * BLOCK
        full_begin = tl.cdiv(tl.maximum(j1 - 1 - shift - right, 0), BLOCK) * BLOCK
    if left is not None:
        end = tl.minimum(Lq, tl.maximum(j1 + left - shift, 0))
        full_end = tl.minimum(Lq, tl.maximum(j0 + left - shift + 1, 0))
    full_end = full_end // BLOCK * BLOCK
    full_begin = tl.minimum(full_begin, tl.cdiv(end, BLOCK) * BLOCK)
    return begin, full_begin, tl.maximum(full_end, full_begin), end


@triton.jit
def finish_scores(
    s, queries, keys, bias, bias_strides, b, h, Lq, Lk, scale, bias_number,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr,
):
    """scale * s + b for a tile of products s; queries and keys are 2-d, along their axes."""
    if HAS_SCALE:
        s *= scale
    if HAS_BIAS_NUMBER:
        s += bias_number
    if bias is not None:
        s += load_scored(bias, bias_strides, b, h, queries, keys, Lq, Lk).to(tl.float32)
    return s


@triton.jit
def gradient_of_scores(s, dw, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr):
    """dw * h'(s)."""
    if IS_BUILTIN:
        return GRADIENT(s, dw)
    else:
        return dw * GRADIENT(s)


@triton.jit
def to_tf32(x):
    """To the nearest number of TF32, to which products cut otherwise; Inf and NaN stay."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < LARGEST_TF32, rounded, x)


@triton.jit
def dot_fp32(a, b, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr):
    """a @ b with the digits of fp32, if they are in it, in a call of these head dims."""
    if BLOCK_D <= TF32_DIM and BLOCK_DV <= TF32_DIM:
        return tl.dot(a, b, input_precision="tf32x3")
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def product(a, b, WIDE: tl.constexpr):
    """a @ b, where a is in fp32 and rounded as ``add_product`` does it."""
    if WIDE:
        return tl.dot(to_tf32(a), b.to(tl.float32), input_precision="tf32")
    else:
        return tl.dot(a.to(b.dtype), b, input_precision="ieee")


@triton.jit
def add_product(
    total, a, b, WIDE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """total + a @ b, for weights or gradients a in fp32.

    They are rounded to b's dtype; WIDE: to fp16's digits, but with the range of fp32. In fp32 the
    product is summed by itself: one long chain rounds too often.
    """
    if WIDE:
        return tl.dot(to_tf32(a), b.to(tl.float32), total, input_precision="tf32")
    a = a.to(b.dtype)
    if b.dtype == tl.float32:
        product = dot_fp32(a, b, BLOCK_D, BLOCK_DV)
        total = tl.fma(product, tl.full(product.shape, 1.0, tl.float32), total)  # a sum is fused
    else:
        total = tl.dot(a, b, total)
    return total
