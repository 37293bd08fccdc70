"""fp32 sums that a backward in one pass adds dq to: cleared before it, rounded to dq behind it."""

import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.portable.addition import launch_addition
from flashpoint.ops.gpu.replay import Recorder, Role

NUMBERS = 4096  # of a program


@triton.jit
def clear_kernel(dq_sums, size, BLOCK: tl.constexpr):
    """Zeros."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dq_sums + at, tl.zeros([BLOCK], tl.float32), mask=at < size)


def launch_clear(recorder: Recorder, dq_sums: Tensor) -> None:
    """Set them to zero."""
    arguments = {"dq_sums": dq_sums, "size": dq_sums.numel(), "BLOCK": NUMBERS}
    recorder.launch(clear_kernel, triton.cdiv(dq_sums.numel(), NUMBERS), arguments)


def launch_round(recorder: Recorder, dq_sums: Tensor, dq: Tensor) -> None:
    """Write dq, [B, H, L, D] with dense rows."""
    roles = {"o": Role.DQ_SUMS, "totals": Role.DQ}
    launch_addition(recorder, dq_sums, dq, roles, overwrites=True)
