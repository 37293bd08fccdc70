"""All keys and values come to every rank: two messages forward, four backward.

    forward: all-gather k, v                                2 f L Hk D elements a rank
    backward: all-gather k, v again, reduce-scatter dk, dv  4 f L Hk D, where f = (P - 1)/P

A rank's queries are ordinary calls over all keys, so nothing is added up but dk and dv. Documents
that ranks hold parts of are divided apart, as a ring does, since n_i may count other keys.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashpoint.distributed.block_calls import RowGradients, attend_block, differentiate_block
from flashpoint.distributed.blocks import blocks_of
from flashpoint.distributed.call import ShardedCall, block_dtype
from flashpoint.distributed.division import divide, undivide
from flashpoint.distributed.first_order import first_order
from flashpoint.distributed.layout import Range
from flashpoint.distributed.partial import Partial, PartialGradients
from flashpoint.distributed.saved import load, save
from flashpoint.distributed.scores import ScoreGradients
from flashpoint.distributed.transport import widened


class Gather(torch.autograd.Function):
    """This rank's o, and its sums if the call has any, by gathering all keys and values."""

    @staticmethod
    def forward(
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """o and sums of this rank's queries; the call has bias and mask."""
        attend = attend_rows if call.documents is None else _attend_documents
        whole = _gather_keys(call, k, v)
        o, sums = attend(call, q, *whole, call.queries.ranges[call.rank])
        kept = (o, sums) if call.divides else (None, None)
        save(ctx, call, q, k, v, *kept)
        return o, sums

    @staticmethod
    @first_order
    def backward(ctx: Any, do: Tensor | None, dsums: Tensor | None) -> Any:
        """None for the call, then dq, dk, dv, dbias and dmask of this rank."""
        call, (q, k, v, o, sums) = load(ctx)
        given: Tensor = q.new_zeros(*q.shape[:3], v.shape[3]) if do is None else do
        grads = RowGradients(given, dsums, (o, sums))
        k, v = _gather_keys(call, k, v)
        queries = call.queries.ranges[call.rank]
        differentiate = differentiate_rows if call.documents is None else _differentiate_documents
        dq, dk, dv, *of_scores = differentiate(call, grads, q, k, v, queries)
        ranks = range(call.transport.size)
        parts = [[call.keys.take(x, rank) for x in (dk, dv)] for rank in ranks]
        dk, dv = call.transport.reduce_scatter(parts, "gradients of keys and values")
        return None, dq, dk.to(k.dtype), dv.to(v.dtype), *of_scores


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
) -> tuple[Any, ...]:
    """dq, what these queries add to dk and dv, dbias and dmask, in the inputs' dtypes."""
    dq, scores = torch.zeros_like(q), ScoreGradients(call)
    blocks = list(blocks_of(queries, [(0, call.keys.total)], call))
    dtype = k.dtype if len(blocks) == 1 else widened(k.dtype)
    dk, dv = (x.new_zeros(x.shape, dtype=dtype) for x in (k, v))
    for block in blocks:
        found = differentiate_block(call, block, call.terms, grads, q, k, v)
        dq[:, :, block.rows] = found[0]
        dk[:, :, block.columns] += found[1]
        dv[:, :, block.columns] += found[2]
        scores.add(block, found[3:])
    return dq, dk.to(k.dtype), dv.to(v.dtype), *scores.finish()


def _attend_documents(
    call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, queries: Sequence[Range]
) -> tuple[Tensor, Tensor | None]:
    partial = Partial(call, q, queries)
    partial.add(k, v, [(0, call.keys.total)])
    return divide(call, queries, partial.numerators, partial.sums, q.dtype), partial.sums


def _differentiate_documents(
    call: ShardedCall,
    grads: RowGradients,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Sequence[Range],
) -> tuple[Any, ...]:
    dtype = block_dtype(call, q.dtype)
    undivided = undivide(call, queries, grads.o, grads.sums, *grads.kept, dtype)
    partial = PartialGradients(call, q, queries, undivided)
    dk, dv = partial.add(k, v, [(0, call.keys.total)])
    return partial.dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None
