"""Levels of images to numbers by a table, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def level_kernel(
    levels_ptr, table_ptr, numbers_ptr,      # uint8 [N]; fp32 [256]; fp32 [N]
    num_values,
    BLOCK: tl.constexpr,
):
    """numbers[n] = table[levels[n]]."""
    value = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_in = value < num_values
    level = tl.load(levels_ptr + value, mask=is_in, other=0).to(tl.int32)
    tl.store(numbers_ptr + value, tl.load(table_ptr + level), mask=is_in)


def launch_levels(levels: Tensor, table: Tensor, numbers: Tensor) -> None:
    """Fill ``numbers`` from levels of the same shape; all are contiguous."""
    num_values = levels.numel()
    level_kernel[(triton.cdiv(num_values, _BLOCK),)](
        levels, table, numbers, num_values, BLOCK=_BLOCK
    )
