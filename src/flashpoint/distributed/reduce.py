"""Queries travel, keys stay: for few queries and many keys.

    forward: all-gather q, reduce-scatter partial outputs             2 f Lq Hq D elements a rank
    backward: all-gather q and g, reduce-scatter dq                   3 f Lq Hq D

dk and dv are never sent: a rank's keys see all queries. Rows' sums that are wanted or divide
travel with the outputs, and their gradients with g.
"""

from typing import Any

import torch
from torch import Tensor

from flashpoint.distributed.block_calls import RowGradients
from flashpoint.distributed.call import ShardedCall, partial_dtype
from flashpoint.distributed.division import divide, undivide
from flashpoint.distributed.first_order import first_order
from flashpoint.distributed.partial import Partial, PartialGradients
from flashpoint.distributed.saved import load, save


class Reduce(torch.autograd.Function):
    """This rank's o, and its sums if the call has any, from sums over all ranks."""

    @staticmethod
    def forward(
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """o and sums of this rank's queries; the call has bias and mask."""
        (whole,) = _gather_rows(call, [q], "queries")
        partial = Partial(call, whole, [(0, call.queries.total)])
        partial.add(k, v, call.keys.ranges[call.rank])
        results = [partial.numerators.to(partial_dtype(q.dtype))]
        results += [] if partial.sums is None else [partial.sums]
        numerators, *rest = _scatter_rows(call, results, "partial outputs")
        sums = rest[0] if rest else None
        o = divide(call, call.queries.ranges[call.rank], numerators, sums, q.dtype)
        kept = (o, sums) if call.divides else (None, None)
        save(ctx, call, q, k, v, *kept)
        return o, sums

    @staticmethod
    @first_order
    def backward(ctx: Any, do: Tensor | None, dsums: Tensor | None) -> Any:
        """None for the call, then dq, dk, dv, dbias and dmask of this rank."""
        call, (q, k, v, o, sums) = load(ctx)
        dtype = partial_dtype(q.dtype)
        dsums = call.sums_gradient(dsums, q)
        grads = undivide(call, call.queries.ranges[call.rank], do, dsums, o, sums, dtype)
        rows = [q.to(dtype), grads.o] + ([] if grads.sums is None else [grads.sums])
        whole, g, *rest = _gather_rows(call, rows, "queries and gradients of outputs")
        gathered = RowGradients(g, rest[0] if rest else None)
        partial = PartialGradients(call, whole, [(0, call.queries.total)], gathered)
        dk, dv = partial.add(k, v, call.keys.ranges[call.rank])
        (dq,) = _scatter_rows(call, [partial.dq.to(dtype)], "gradients of queries")
        of_scores = partial.scores.finish()
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *of_scores


def _gather_rows(call: ShardedCall, tensors: list[Tensor], what: str) -> list[Tensor]:
    """All queries' rows, in their order, from this rank's."""
    dims = [2 if i < 2 else call.sums_dim for i in range(len(tensors))]
    shapes = [
        [_resized(x, dim, length) for x, dim in zip(tensors, dims, strict=True)]
        for length in call.queries.lengths
    ]
    found = call.transport.all_gather(tensors, shapes, what)
    return [
        call.queries.join([of_rank[i] for of_rank in found], dim) for i, dim in enumerate(dims)
    ]


def _scatter_rows(call: ShardedCall, tensors: list[Tensor], what: str) -> list[Tensor]:
    """Sums over ranks of this rank's rows."""
    dims = [2 if i < 1 else call.sums_dim for i in range(len(tensors))]
    parts = [
        [call.queries.take(x, rank, dim) for x, dim in zip(tensors, dims, strict=True)]
        for rank in range(call.transport.size)
    ]
    return call.transport.reduce_scatter(parts, what)


def _resized(x: Tensor, dim: int, length: int) -> tuple[int, ...]:
    return (*x.shape[:dim], length, *x.shape[dim + 1 :])
