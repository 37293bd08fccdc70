"""Sums over some of the keys that are not yet divided: what ring and reduce add up in fp32."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flashpoint.distributed.block_calls import (
    Place,
    RowGradients,
    add_block,
    add_gradients,
    attend_block,
    differentiate_block,
)
from flashpoint.distributed.blocks import blocks_of
from flashpoint.distributed.call import ShardedCall, block_dtype, plain_sums
from flashpoint.distributed.layout import Range
from flashpoint.distributed.scores import ScoreGradients
from flashpoint.distributed.transport import widened


class Total:
    """A sum of parts that cover some of its places each, in fp32 (fp64 for fp64).

    A first part that covers all of them is the sum so far, as it is: nothing is widened before
    there is something to add. If more is to come, its place is fp32 from the start: a pass that
    widens it would read 2 and write 4 bytes a number behind a kernel's 2.

    Args:
        shape: of the sum.
        dim: the axis along which parts lie.
        like: a tensor of the parts' device and dtype.
        more: whether more than one part is to come.
    """

    def __init__(
        self, shape: Sequence[int], dim: int, like: Tensor, *, more: bool = False
    ) -> None:
        self.shape, self.dim, self.like, self.more = torch.Size(shape), dim, like, more
        self._sum: Tensor | None = None

    def place(self, at: slice) -> Place | None:
        """Where a part is to go; None where it can be the sum so far, as it is.

        The sum is widened for it. If there is none yet, it begins with zeros, or is fresh memory,
        which the place says.
        """
        dtype = widened(self.like.dtype)
        if self._sum is not None:
            self._sum = self._sum.to(dtype)
        elif (at.start, at.stop) != (0, self.shape[self.dim]):
            self._sum = self.like.new_zeros(self.shape, dtype=dtype)
        elif self.more and dtype != self.like.dtype:
            self._sum = self.like.new_empty(self.shape, dtype=dtype)
            return Place(self._sum, is_new=True)
        else:
            return None
        return Place(self._sum.narrow(self.dim, at.start, at.stop - at.start))

    def add(self, part: Tensor, at: slice) -> None:
        """Take a part in; nobody else may hold it."""
        place = self.place(at)
        if place is None:
            self._sum = part
        else:
            place.take(part)

    def finish(self) -> Tensor:
        """The sum; in the parts' own dtype where it is one of them."""
        if self._sum is not None:
            return self._sum
        return self.like.new_zeros(self.shape, dtype=widened(self.like.dtype))


class Partial:
    """Numerators and sums of some queries over the keys so far, in fp32 (fp64 for fp64).

    Blocks are made in ``block_dtype``. Kernels that do not add to sums by themselves round their
    numerators to it.

    Args:
        call: the whole call.
        q: rows of queries.
        queries: which they are.
        more: whether keys are taken in more than once.
    """

    def __init__(
        self, call: ShardedCall, q: Tensor, queries: Sequence[Range], *, more: bool = False
    ) -> None:
        self.call, self.queries = call, queries
        self.q = q.to(block_dtype(call, q.dtype))
        self._numerators = Total((*q.shape[:3], call.sizes.value_dim), 2, self.q, more=more)
        self._sums = Total(call.sums_shape(q.shape[2]), call.sums_dim, q)

    def add(self, k: Tensor, v: Tensor, keys: Sequence[Range]) -> None:
        """Take these keys in."""
        terms = plain_sums(self.call.terms)
        k, v = k.to(self.q.dtype), v.to(self.q.dtype)
        for block in blocks_of(self.queries, keys, self.call):
            place = self._numerators.place(block.rows)
            if place is None:
                o, sums = attend_block(self.call, block, terms, self.q, k, v)
                self._numerators.add(o, block.rows)
            else:
                sums = add_block(self.call, block, terms, self.q, k, v, place)
            if sums is not None:
                self._sums.add(sums, block.rows)

    @property
    def numerators(self) -> Tensor:
        """Those over the keys so far."""
        return self._numerators.finish()

    @property
    def sums(self) -> Tensor | None:
        """Those over the keys so far, where the call has any."""
        return self._sums.finish() if self.call.has_sums else None


class PartialGradients:
    """dq, dbias and dmask of some queries over the keys so far, in fp32 (fp64 for fp64).

    Args:
        call: the whole call.
        q: rows of queries.
        queries: which they are.
        grads: of their numerators and sums.
        more: whether keys are taken in more than once.
    """

    def __init__(
        self,
        call: ShardedCall,
        q: Tensor,
        queries: Sequence[Range],
        grads: RowGradients,
        *,
        more: bool = False,
    ) -> None:
        self.call, self.queries = call, queries
        self.q = q.to(block_dtype(call, q.dtype))
        self.grads = grads._replace(o=grads.o.to(self.q.dtype))
        self._dq = Total(q.shape, 2, self.q, more=more)
        self.scores = ScoreGradients(call)

    def add(self, k: Tensor, v: Tensor, keys: Sequence[Range]) -> tuple[Tensor, Tensor]:
        """Take these keys in; gives what these queries add to dk and dv."""
        terms = plain_sums(self.call.terms)
        k, v = k.to(self.q.dtype), v.to(self.q.dtype)
        dk, dv = (Total(x.shape, 2, x) for x in (k, v))
        for block in blocks_of(self.queries, keys, self.call):
            inputs = (self.call, block, terms, self.grads, self.q, k, v)
            place = self._dq.place(block.rows)
            if place is None:
                dq, *grads = differentiate_block(*inputs)
                self._dq.add(dq, block.rows)
            else:
                grads = add_gradients(*inputs, place)
            dk.add(grads[0], block.columns)
            dv.add(grads[1], block.columns)
            self.scores.add(block, grads[2:])
        return dk.finish(), dv.finish()

    @property
    def dq(self) -> Tensor:
        """That over the keys so far."""
        return self._dq.finish()
