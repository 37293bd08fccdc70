"""How many keys each query sees where a mask of booleans hides some."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.portable.blocks import in_window, load_scored, sequence
from flashpoint.ops.gpu.versions import launch_options

if TYPE_CHECKING:
    from flashpoint.ops.gpu.call import Problem

ROWS, KEYS = 16, 256


@triton.jit
def count_kernel(
    counts, mask, lengths, cu_q, cu_k, mask_strides, H, Lq, Lk, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """counts [B, H, Lq]: keys that exist, lie in the query's window and are not masked."""
    num_blocks = tl.cdiv(Lq, BLOCK_M)
    pid = tl.program_id(0)
    i0 = pid % num_blocks * BLOCK_M
    h = pid // num_blocks % H
    b = pid // num_blocks // H
    _, _, _, num_queries, num_keys, existing = sequence(b, lengths, cu_q, cu_k, Lq, Lk)
    queries = i0 + tl.arange(0, BLOCK_M)
    total = tl.zeros([BLOCK_M], tl.int32)
    for j0 in range(0, existing, BLOCK_N):
        keys = (j0 + tl.arange(0, BLOCK_N))[None, :]
        rows = queries[:, None]
        seen = in_window(rows, keys, num_keys - num_queries, existing, left, right)
        seen &= load_scored(mask, mask_strides, b, h, rows, keys, num_queries, num_keys) != 0
        total += tl.sum(seen.to(tl.int32), 1)
    at = counts + (tl.cast(b, tl.int64) * H + h) * Lq
    tl.store(at + queries, total, mask=queries < Lq)


def launch_counts(problem: "Problem", mask: Tensor, mask_strides: tuple[int, ...]) -> Tensor:
    """[B or 1, H or 1, Lq] numbers of visible keys; one where all samples or heads share them."""
    varies = problem.ends_early or mask.shape[0] > 1
    samples = problem.num_samples if varies else 1
    heads = mask.shape[1]
    counts = problem.q.new_empty(samples, heads, problem.num_queries, dtype=torch.int32)
    grid = (triton.cdiv(problem.num_queries, ROWS) * heads * samples,)
    count_kernel[grid](
        counts, mask,
        problem.lengths, problem.cu_q, problem.cu_k, mask_strides,
        heads, problem.num_queries, problem.num_keys, *problem.window,
        ROWS, KEYS, **launch_options(),
    )
    return counts
