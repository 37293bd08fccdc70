"""Packed q, k and v on the CPU: norms, and the tiles of the general attention between them."""

from typing import Any

from torch import Tensor

from flashpoint.ops.cpu.backward import backward, backward_sums
from flashpoint.ops.cpu.forward import forward, forward_sums
from flashpoint.ops.packed import attend_packed, differentiate_packed


def forward_packed(*inputs: Any) -> Tensor:
    """[B, L, H, D] from qkv [B, L, 3, H, D] and the rest of ``attend_packed``'s arguments."""

    def attend(*heads_first: Any) -> Tensor:
        # one pass over o: products that write to heads far apart would copy as well
        return forward(*heads_first).transpose(1, 2).contiguous()

    return attend_packed(attend, *inputs)


def forward_packed_sums(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The same and the rows' sums of weights, [B, H, L]."""

    def attend(*heads_first: Any) -> tuple[Tensor, Tensor]:
        o, sums = forward_sums(*heads_first)
        return o.transpose(1, 2).contiguous(), sums

    return attend_packed(attend, *inputs)


def backward_packed(*inputs: Any) -> list[Tensor]:
    """The gradients, as ``differentiate_packed`` lists them."""
    return differentiate_packed(backward, *inputs)


def backward_packed_sums(
    do: Tensor, dsums: Tensor | None, o: Tensor | None, sums: Tensor | None, *inputs: Any
) -> list[Tensor]:
    """The same where the rows' sums have gradients, or divide the result o."""
    heads_first = None if o is None else o.transpose(1, 2)

    def differentiate(do: Tensor, *rest: Any) -> list[Tensor]:
        return backward_sums(do, dsums, heads_first, sums, *rest)

    return differentiate_packed(differentiate, do, *inputs)
