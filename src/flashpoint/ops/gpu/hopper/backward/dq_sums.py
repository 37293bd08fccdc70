"""fp32 sums that a backward in one pass adds dq to: cleared before it, rounded to dq behind it."""

import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.reading import block_of
from flashpoint.ops.gpu.replay import Recorder

NUMBERS = 4096  # of a program


@triton.jit
def clear_kernel(dq_sums, size, BLOCK: tl.constexpr):
    """Zeros."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dq_sums + at, tl.zeros([BLOCK], tl.float32), mask=at < size)


@triton.jit
def round_kernel(
    dq_sums, dq, batch, head, row,                 # strides of dq; the sums are dense
    H, L, D: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Of one head's rows."""
    num_blocks = tl.cdiv(L, BLOCK_L)
    which, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    rows = block * BLOCK_L + tl.arange(0, BLOCK_L)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    exists = (rows < L) & (columns < D)
    own = dq_sums + which.to(tl.int64) * L * D + rows.to(tl.int64) * D + columns
    at = (which // H).to(tl.int64) * batch + (which % H).to(tl.int64) * head
    places = dq + at + rows.to(tl.int64) * row + columns
    tl.store(places, tl.load(own, mask=exists).to(dq.dtype.element_ty), mask=exists)


def launch_clear(recorder: Recorder, dq_sums: Tensor) -> None:
    """Set them to zero."""
    arguments = {"dq_sums": dq_sums, "size": dq_sums.numel(), "BLOCK": NUMBERS}
    recorder.launch(clear_kernel, triton.cdiv(dq_sums.numel(), NUMBERS), arguments)


def launch_round(recorder: Recorder, dq_sums: Tensor, dq: Tensor) -> None:
    """Write dq, [B, H, L, D] with dense rows."""
    B, H, L, D = dq.shape
    block_d = block_of(D)
    block_l = NUMBERS // block_d
    batch, head, row, _ = dq.stride()
    arguments = {
        "dq_sums": dq_sums, "dq": dq, "batch": batch, "head": head, "row": row,
        "H": H, "L": L, "D": D, "BLOCK_L": block_l, "BLOCK_D": block_d,
    }
    recorder.launch(round_kernel, B * H * triton.cdiv(L, block_l), arguments)
