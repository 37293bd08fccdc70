"""Packed q, k and v on the CPU: norms, and the tiles of the general attention between them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flashpoint.ops.cpu.backward import backward
from flashpoint.ops.cpu.forward import forward
from flashpoint.ops.packed import attend_packed, differentiate_packed


def forward_packed(has_sums: bool, *inputs: Any) -> list[Tensor]:
    """[B, L, H, D] from qkv [B, L, 3, H, D] and the rest of ``attend_packed``'s arguments.

    With sums those of each row's weights, [B, H, L], behind it.
    """

    def attend(*heads_first: Any) -> list[Tensor]:
        o, *sums = forward(has_sums, *heads_first)
        # one pass over o: products that write to heads far apart would copy as well
        return [o.transpose(1, 2).contiguous(), *sums]

    return attend_packed(attend, *inputs)


def backward_packed(of_sums: Sequence[Tensor | None], do: Tensor, *inputs: Any) -> list[Tensor]:
    """The gradients, as ``differentiate_packed`` lists them; ``of_sums`` as for ``backward``."""
    if of_sums:
        dsums, o, sums = of_sums
        of_sums = (dsums, None if o is None else o.transpose(1, 2), sums)

    def differentiate(*heads_first: Any) -> list[Tensor]:
        return backward(of_sums, *heads_first)

    return differentiate_packed(differentiate, do, *inputs)
