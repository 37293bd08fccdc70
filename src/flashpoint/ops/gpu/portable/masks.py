"""A mask of booleans, read once before the kernels that use it.

It becomes words of 32 keys, which kernels read instead of its bytes, and where a query's visible
keys count, its normalizer gain * n_i ** -alpha. Few keys, or one byte for all of them, stay bytes.
"""

import torch
import triton
import triton.language as tl

from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.normalizer import (
    broadcast_strides,
    counts_mask,
    gain_of,
    over_power,
    power_of,
)
from flashpoint.ops.gpu.portable.blocks import WORD, in_window, load_scored, sequence
from flashpoint.ops.gpu.replay import Recorder, Role

ROWS, KEYS = 16, 256  # of a program at a time
WHOLE_WORDS = 8  # a row has a multiple of it, as many as the largest block of keys


@triton.jit
def mask_kernel(
    mask, mask_words, normalizers, lengths, cu_q, cu_k,  # pointers; those behind the mask or None
    mask_strides, word_strides, H, rows, Lq, Lk, num_words, left, right, gain, alpha,
    POWER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """mask_words [B, H, rows, num_words] of the mask, and normalizers [B, H, rows]."""
    num_blocks = tl.cdiv(rows, BLOCK_M)
    pid = tl.program_id(0)
    h = pid // num_blocks % H
    b = pid // num_blocks // H
    _, _, _, num_queries, num_keys, existing = sequence(b, lengths, cu_q, cu_k, Lq, Lk)
    queries = pid % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    row, exists = queries[:, None], (queries < rows)[:, None]
    total = tl.zeros([BLOCK_M], tl.int32)
    for j0 in range(0, Lk, BLOCK_N):
        keys = (j0 + tl.arange(0, BLOCK_N))[None, :]
        is_left = load_scored(mask, mask_strides, b, h, row, keys, rows, Lk) != 0
        if mask_words is not None:
            bits = is_left.to(tl.uint32) << (keys % WORD).to(tl.uint32)
            words = tl.sum(bits.reshape(BLOCK_M, BLOCK_N // WORD, WORD), 2)
            at = mask_words + tl.cast(b, tl.int64) * word_strides[0]
            at += tl.cast(h, tl.int64) * word_strides[1] + row.to(tl.int64) * word_strides[2]
            column = (tl.arange(0, BLOCK_N // WORD) + j0 // WORD)[None, :]
            words = words.to(tl.int32, bitcast=True)
            tl.store(at + column, words, mask=exists & (column < num_words))
        if normalizers is not None:
            shift = num_keys - num_queries
            seen = is_left & in_window(row, keys, shift, existing, left, right)
            total += tl.sum(seen.to(tl.int32), 1)
    if normalizers is not None:
        factor = tl.zeros([BLOCK_M], tl.float32) + gain
        factor = over_power(factor, tl.maximum(total, 1).to(tl.float32), alpha, POWER)
        at = normalizers + (tl.cast(b, tl.int64) * H + h) * rows + queries
        tl.store(at, factor, mask=queries < rows)


def read_mask(call: Call, recorder: Recorder, kernels: dispatch.Kernels) -> Call:
    """The call with its mask's words and its rows' normalizers, as its kernels want them."""
    mask = call.mask
    if mask is None or mask.dtype != torch.uint8:
        return call
    packs = kernels is dispatch.PORTABLE and call.has_many_keys and mask.shape[3] > 1
    counts = counts_mask(call)
    if not (packs or counts):
        return call
    samples, heads, rows = mask.shape[:3]
    words = normalizers = None
    num_words = triton.cdiv(call.num_keys, WHOLE_WORDS * WORD.value) * WHOLE_WORDS
    if packs:
        words = recorder.empty(Role.MASK_WORDS, (samples, heads, rows, num_words), torch.int32)
    power, alpha = "none", None
    if counts:
        samples = call.num_samples if call.ends_early else samples
        rows = call.num_queries
        normalizers = recorder.empty(Role.NORMALIZERS, (samples, heads, rows), torch.float32)
        power, alpha = power_of(call.terms.alpha)
    recorder.launch(mask_kernel, triton.cdiv(rows, ROWS) * heads * samples, {
        "mask": mask, "mask_words": words, "normalizers": normalizers,
        "lengths": call.lengths, "cu_q": call.cu_q, "cu_k": call.cu_k,
        "mask_strides": broadcast_strides(mask), "word_strides": broadcast_strides(words),
        "H": heads, "rows": rows, "Lq": call.num_queries, "Lk": call.num_keys,
        "num_words": num_words, "left": call.window[0], "right": call.window[1],
        "gain": gain_of(call), "alpha": alpha, "POWER": power, "BLOCK_M": ROWS, "BLOCK_N": KEYS,
    })
    return call._replace(mask_words=words, normalizers=normalizers)
