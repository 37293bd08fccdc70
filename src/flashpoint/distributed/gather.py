"""All keys and values come to every rank: two messages forward, four backward.

    forward: all-gather k, v                                2 f L Hk D elements a rank
    backward: all-gather k, v again, reduce-scatter dk, dv  4 f L Hk D, where f = (P - 1)/P

A rank's queries are ordinary calls over all keys, so nothing is added up but dk and dv.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashpoint.distributed.blocks import (
    RowGradients,
    attend_block,
    blocks_of,
    differentiate_block,
)
from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.first_order import first_order
from flashpoint.distributed.layout import Range
from flashpoint.distributed.transport import widened


class Gather(torch.autograd.Function):
    """This rank's o, and its sums if the call has any, by gathering all keys and values."""

    @staticmethod
    def forward(
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """o and sums of this rank's queries."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        o, sums = attend_rows(call, q, *_gather_keys(call, k, v), call.queries.ranges[call.rank])
        kept = (o, sums) if call.divides else (None, None)
        ctx.save_for_backward(q, k, v, *kept)
        return o, sums

    @staticmethod
    @first_order
    def backward(ctx: Any, do: Tensor | None, dsums: Tensor | None) -> Any:
        """None for the call, then dq, dk and dv of this rank."""
        call: ShardedCall = ctx.call
        q, k, v, o, sums = ctx.saved_tensors
        given: Tensor = q.new_zeros(*q.shape[:3], v.shape[3]) if do is None else do
        grads = RowGradients(given, dsums, (o, sums))
        k, v = _gather_keys(call, k, v)
        queries = call.queries.ranges[call.rank]
        dq, dk, dv = differentiate_rows(call, grads, q, k, v, queries)
        ranks = range(call.transport.size)
        parts = [[call.keys.take(x, rank) for x in (dk, dv)] for rank in ranks]
        dk, dv = call.transport.reduce_scatter(parts, "gradients of keys and values")
        return None, dq, dk.to(k.dtype), dv.to(v.dtype)


def _gather_keys(call: ShardedCall, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    shapes = [call.key_shapes(rank) for rank in range(call.transport.size)]
    parts = call.transport.all_gather([k, v], shapes, "keys and values")
    return call.keys.join([x for x, _ in parts]), call.keys.join([x for _, x in parts])


def attend_rows(
    call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, queries: Sequence[Range]
) -> tuple[Tensor, Tensor | None]:
    """Some queries over all keys by ordinary calls, normalizers and all."""
    o = q.new_zeros(*q.shape[:3], v.shape[3])
    shape = (*((2,) if call.terms.logs else ()), *q.shape[:3])
    sums = q.new_zeros(shape, dtype=widened(q.dtype)) if call.has_sums else None
    for block in blocks_of(queries, [(0, call.keys.total)], call):
        part, part_sums = attend_block(call, block, call.terms, q, k, v)
        o[:, :, block.rows] = part
        if sums is not None and part_sums is not None:
            sums[..., block.rows] = part_sums
    return o, sums


def differentiate_rows(
    call: ShardedCall,
    grads: RowGradients,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Sequence[Range],
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, and what these queries add to dk and dv, in the inputs' dtype."""
    dq = torch.zeros_like(q)
    blocks = list(blocks_of(queries, [(0, call.keys.total)], call))
    dtype = k.dtype if len(blocks) == 1 else widened(k.dtype)
    dk, dv = (x.new_zeros(x.shape, dtype=dtype) for x in (k, v))
    for block in blocks:
        found = differentiate_block(call, block, call.terms, grads, q, k, v)
        dq[:, :, block.rows] = found[0]
        dk[:, :, block.columns] += found[1]
        dv[:, :, block.columns] += found[2]
    return dq, dk.to(k.dtype), dv.to(v.dtype)
