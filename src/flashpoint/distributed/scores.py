"""Bias and mask of a rank: rows of its own queries, columns of all keys, [#B, #Hq, #Lq, #Lk].

An axis of size 1 holds for all of its kind. Gradients are of this rank's rows; those of a tensor
that ranks share add up over ranks, as gradients of weights do.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from flashpoint.distributed.blocks import Block
from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.transport import widened


class Rows(IntEnum):
    """Whose rows a bias or mask has, as far as one rank can tell."""

    NONE = 0
    OWN = 1
    SHARED = 2
    EITHER = 3

    @classmethod
    def of(cls, x: Tensor | None, num_queries: int) -> "Rows":
        """Of a tensor with four axes; one row of one query may be its own, or everybody's."""
        if x is None:
            return cls.NONE
        if x.shape[2] == num_queries:
            return cls.EITHER if num_queries == 1 else cls.OWN
        return cls.SHARED

    @classmethod
    def are_own(cls, by_rank: Sequence[int]) -> bool:
        """Whether ranks may have different rows."""
        return cls.OWN in by_rank or (len(by_rank) > 1 and set(by_rank) == {cls.EITHER})


def cut_scores(x: Tensor | None, block: Block) -> Tensor | None:
    """A block's part of a bias or mask."""
    if x is None:
        return None
    if x.shape[2] != 1:
        x = x[:, :, block.rows]
    if x.shape[3] == 1:
        return x
    runs = [x[..., start:stop] for start, stop in block.keys]
    return runs[0] if len(runs) == 1 else torch.cat(runs, -1)


class ScoreGradients:
    """dbias and dmask over the blocks so far, in fp32 (fp64 for fp64), where a call needs them."""

    def __init__(self, call: ShardedCall) -> None:
        pairs = zip((call.bias, call.mask), call.needs, strict=True)
        self.given = [x if need else None for x, need in pairs]
        self.totals = [
            x.new_zeros(x.shape, dtype=widened(x.dtype)) for x in self.given if x is not None
        ]

    def add(self, block: Block, found: list[Tensor]) -> None:
        """Take a block's gradients in, those that are needed."""
        for total, part in zip(self.totals, found, strict=True):
            rows = total if total.shape[2] == 1 else total[:, :, block.rows]
            if total.shape[3] == 1:
                rows += part
                continue
            sizes = [stop - start for start, stop in block.keys]
            for (start, stop), columns in zip(block.keys, part.split(sizes, -1), strict=True):
                rows[..., start:stop] += columns

    def finish(self) -> list[Tensor | None]:
        """Both, in their own dtype; None for one that nobody needs."""
        totals = iter(self.totals)
        return [None if x is None else next(totals).to(x.dtype) for x in self.given]
