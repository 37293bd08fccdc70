"""Mixup of a batch in one launch: ``l * x + (1 - l) * the one before``, as PyTorch rounds it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def mix_kernel(
    own_ptr, before_ptr, mixed_ptr,          # fp32 [B, N], [1, N], [B, N]
    num_values, share, rest,                 # N, l, 1 - l
    BLOCK: tl.constexpr,
):
    """Some values of one image; the first image's neighbor stands apart."""
    image = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = value < num_values
    neighbor_ptr = own_ptr + (image - 1) * num_values
    if image == 0:
        neighbor_ptr = before_ptr
    own = tl.load(own_ptr + image * num_values + value, mask=is_in)
    before = tl.load(neighbor_ptr + value, mask=is_in)
    tl.store(mixed_ptr + image * num_values + value, share * own + rest * before, mask=is_in)


def launch_mix(own: Tensor, before: Tensor, share: float) -> Tensor:
    """The batch mixed with itself, rolled by one; ``before`` stands before its first image."""
    own, before = own.contiguous(), before.contiguous()
    mixed = torch.empty_like(own)
    num_values = own[0].numel()
    mix_kernel[len(own), triton.cdiv(num_values, _BLOCK)](
        own, before, mixed, num_values, share, 1.0 - share, BLOCK=_BLOCK, enable_fp_fusion=False
    )
    return mixed
