"""Sums over some of the keys that are not yet divided: what ring and reduce add up in fp32."""

from collections.abc import Sequence

from torch import Tensor

from flashpoint.distributed.block_calls import RowGradients, attend_block, differentiate_block
from flashpoint.distributed.blocks import blocks_of
from flashpoint.distributed.call import ShardedCall, block_dtype, plain_sums
from flashpoint.distributed.layout import Range
from flashpoint.distributed.scores import ScoreGradients
from flashpoint.distributed.transport import widened


class Partial:
    """Numerators and sums of some queries over the keys so far, in fp32 (fp64 for fp64).

    Blocks are made in ``block_dtype``, to which the operator rounds their numerators once.

    Args:
        call: the whole call.
        q: rows of queries.
        queries: which they are.
    """

    def __init__(self, call: ShardedCall, q: Tensor, queries: Sequence[Range]) -> None:
        self.call, self.queries = call, queries
        self.q = q.to(block_dtype(call, q.dtype))
        dtype = widened(q.dtype)
        self.numerators = q.new_zeros((*q.shape[:3], call.sizes.value_dim), dtype=dtype)
        shape = call.sums_shape(q.shape[2])
        self.sums = q.new_zeros(shape, dtype=dtype) if call.has_sums else None

    def add(self, k: Tensor, v: Tensor, keys: Sequence[Range]) -> None:
        """Take these keys in."""
        terms = plain_sums(self.call.terms)
        k, v = k.to(self.q.dtype), v.to(self.q.dtype)
        for block in blocks_of(self.queries, keys, self.call):
            o, sums = attend_block(self.call, block, terms, self.q, k, v)
            self.numerators[:, :, block.rows] += o
            if self.sums is not None and sums is not None:
                self.sums[..., block.rows] += sums


class PartialGradients:
    """dq, dbias and dmask of some queries over the keys so far, in fp32 (fp64 for fp64).

    Args:
        call: the whole call.
        q: rows of queries.
        queries: which they are.
        grads: of their numerators and sums.
    """

    def __init__(
        self, call: ShardedCall, q: Tensor, queries: Sequence[Range], grads: RowGradients
    ) -> None:
        self.call, self.queries = call, queries
        self.q = q.to(block_dtype(call, q.dtype))
        self.grads = grads._replace(o=grads.o.to(self.q.dtype))
        self.dq = q.new_zeros(q.shape, dtype=widened(q.dtype))
        self.scores = ScoreGradients(call)

    def add(self, k: Tensor, v: Tensor, keys: Sequence[Range]) -> tuple[Tensor, Tensor]:
        """Take these keys in; gives what these queries add to dk and dv."""
        terms = plain_sums(self.call.terms)
        k, v = k.to(self.q.dtype), v.to(self.q.dtype)
        dk, dv = (x.new_zeros(x.shape, dtype=self.dq.dtype) for x in (k, v))
        for block in blocks_of(self.queries, keys, self.call):
            grads = differentiate_block(self.call, block, terms, self.grads, self.q, k, v)
            self.dq[:, :, block.rows] += grads[0]
            dk[:, :, block.columns] += grads[1]
            dv[:, :, block.columns] += grads[2]
            self.scores.add(block, grads[3:])
        return dk, dv
