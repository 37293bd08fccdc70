"""One call over all ranks as data: what every strategy is given.

Shapes: B batch, Hq query heads, Hkv key heads, Lq queries, Lk keys, D and Dv head dims. Lengths
without a rank are of the whole sequence.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flashpoint.distributed.documents import Documents
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.transport import Shape, Transport, widened
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.spec import Terms


class Sizes(NamedTuple):
    """What all ranks agree on: heads, and widths of q and k (D) and of v (Dv)."""

    batch: int
    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


class ShardedCall(NamedTuple):
    """Everything about a call but this rank's q, k and v.

    Attributes:
        queries, keys: who holds which.
        offset: the position of the first query: Lk - Lq, or 0 where they count from the first.
        sizes: of all tensors.
        terms: of the whole call; its n_i is never the number of a shard's keys.
        key_lengths: [B], how many keys of the whole sequence exist, or None.
        impl: who computes blocks.
        has_sums: whether rows' sums of weights are wanted or divide the result.
        returns_sums: whether they are wanted, and so may have a gradient.
        transport: the messages.
        documents: where packed ones start and end; None where all is one sequence.
        bias, mask: four axes, rows of this rank's queries and columns of all keys, or None.
        has_rows: the names of those that have a row for each query, on any rank.
        needs: whether either one's gradient is wanted; known in backward alone.
    """

    queries: Shards
    keys: Shards
    offset: int
    sizes: Sizes
    terms: Terms
    key_lengths: Tensor | None
    impl: str
    has_sums: bool
    returns_sums: bool
    transport: Transport
    documents: Documents | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    has_rows: tuple[str, ...] = ()
    needs: tuple[bool, bool] = (False, False)

    @property
    def divides(self) -> bool:
        """True where the result is divided by the rows' sums."""
        return self.terms.normalize == "sum"

    @property
    def totals(self) -> tuple[int, int]:
        """Queries and keys of the whole sequence."""
        return self.queries.total, self.keys.total

    @property
    def num_scores(self) -> int:
        """Pairs of a query and a key that may see one another, windows left out."""
        if self.documents is not None:
            return self.documents.num_scores
        return self.queries.total * self.keys.total

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        return self.transport.rank

    def key_shapes(self, rank: int) -> list[Shape]:
        """Of a rank's k and v."""
        B, _, H, D, Dv = self.sizes
        length = self.keys.lengths[rank]
        return [(B, H, length, D), (B, H, length, Dv)]

    def query_shape(self, rank: int, width: int) -> Shape:
        """Of a rank's rows of a tensor as wide."""
        return (self.sizes.batch, self.sizes.q_heads, self.queries.lengths[rank], width)

    def sums_shape(self, length: int) -> Shape:
        """Of the sums of so many rows; with logs there are two planes."""
        planes = (2,) if self.terms.logs else ()
        return (*planes, self.sizes.batch, self.sizes.q_heads, length)

    @property
    def sums_dim(self) -> int:
        """The axis of queries in sums."""
        return 3 if self.terms.logs else 2

    def sums_gradient(self, given: Tensor | None, q: Tensor) -> Tensor | None:
        """That of this rank's sums; zeros where only others use theirs, so that all send it."""
        if given is not None or not self.returns_sums:
            return given
        shape = self.sums_shape(self.queries.lengths[self.rank])
        return q.new_zeros(shape, dtype=widened(q.dtype))


def settle_length(terms: Terms, num_keys: int) -> Terms:
    """The same terms with a number for n_i where that is all keys, not a shard's."""
    if terms.length != "keys":
        return terms
    power = normalizer(max(num_keys, 1), terms.alpha)
    if terms.normalize == "sum":
        return terms._replace(floor=terms.floor * power, alpha=0.0, length="visible")
    return terms._replace(gain=terms.gain * power, alpha=0.0, length="visible")


def plain_sums(terms: Terms) -> Terms:
    """Terms whose results are sums over keys and no more: those of blocks add up."""
    return terms._replace(alpha=0.0, gain=1.0, normalize="length", floor=0.0)


def partial_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums over a block of keys travel in before anything divides them.

    fp16 holds neither the sums of many keys nor gradients divided by their number.
    """
    return torch.float32 if dtype == torch.float16 else dtype


def block_dtype(call: ShardedCall, dtype: torch.dtype) -> torch.dtype:
    """What they are made in: fp32 where that is as fast, since sums of shards may cancel.

    Triton's kernels multiply bf16 many times faster than fp32.
    """
    return partial_dtype(dtype) if call.impl == "triton" else widened(dtype)
