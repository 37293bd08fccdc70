"""Packed q, k and v on the CPU: norms, and the tiles of the general attention between them."""

from typing import Any

from torch import Tensor

from flashpoint.ops.cpu.backward import backward
from flashpoint.ops.cpu.forward import forward
from flashpoint.ops.packed import attend_packed, differentiate_packed


def forward_packed(*inputs: Any) -> Tensor:
    """[B, L, H, D] from qkv [B, L, 3, H, D] and the rest of ``attend_packed``'s arguments."""
    return attend_packed(_forward_heads_last, *inputs)


def backward_packed(*inputs: Any) -> list[Tensor]:
    """The gradients, as ``differentiate_packed`` lists them."""
    return differentiate_packed(backward, *inputs)


def _forward_heads_last(*inputs: Any) -> Tensor:
    # one pass over o: products that write to heads far apart would copy as well
    return forward(*inputs).transpose(1, 2).contiguous()
