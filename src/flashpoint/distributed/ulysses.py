"""Heads in exchange for tokens: each rank gets all tokens of some heads, and gives them back.

    forward: all-to-all of q, k, v, then of o           f (L/P) D (2 Hq + 2 Hk) elements a rank
    backward: all-to-all of do, then of dq, dk, dv      the same

Between the two stands an ordinary call, which keeps q, k and v of its heads for backward. A bias
or mask with rows of queries travels like q, and its gradient back; one without is cut by heads.
"""

from typing import Any

import torch
from torch import Tensor

from flashpoint.distributed.block_calls import RowGradients
from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.first_order import first_order
from flashpoint.distributed.gather import attend_rows, differentiate_rows
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.saved import load, save


class Ulysses(torch.autograd.Function):
    """This rank's o, and its sums if the call has any, by exchanging heads for tokens."""

    @staticmethod
    def forward(
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """o and sums of this rank's queries; the call has what ``cut_by_heads`` gave."""
        named = [(q, call.queries), (k, call.keys), (v, call.keys)]
        q, k, v = _to_heads(call, named, "queries, keys and values")
        names = ("bias", "mask")
        call = call._replace(**{name: _rows_to_heads(call, name) for name in names})
        o, sums = attend_rows(call, q, k, v, [(0, call.queries.total)])
        kept = (o, sums) if call.divides else (None, None)
        save(ctx, call, q, k, v, *kept)
        results = [o, _rows_first(call, sums)] if call.returns_sums and sums is not None else [o]
        o, *rest = _to_tokens(call, [(x, call.queries) for x in results], "outputs")
        return o, _planes_first(call, rest[0]) if rest else None

    @staticmethod
    @first_order
    def backward(ctx: Any, do: Tensor | None, dsums: Tensor | None) -> Any:
        """None for the call, then dq, dk, dv, dbias and dmask of this rank."""
        call, (q, k, v, o, sums) = load(ctx)
        shape = call.query_shape(call.rank, call.sizes.value_dim)
        dsums = call.sums_gradient(dsums, q)
        given: list[Tensor] = [q.new_zeros(shape) if do is None else do.to(q.dtype)]
        given += [] if dsums is None else [_rows_first(call, dsums)]
        of_o, *rest = _to_heads(call, [(x, call.queries) for x in given], "gradients of outputs")
        of_sums = _planes_first(call, rest[0]) if rest else None
        grads = RowGradients(of_o, of_sums, (o, sums))
        *made, dbias, dmask = differentiate_rows(call, grads, q, k, v, [(0, call.queries.total)])
        whose = (call.queries, call.keys, call.keys)
        pairs = list(zip(made, whose, strict=True))
        of_tokens = _to_tokens(call, pairs, "gradients of queries, keys and values")
        of_scores = [_rows_to_tokens(call, *x) for x in (("bias", dbias), ("mask", dmask))]
        return None, *of_tokens, *of_scores


def _rows_first(call: ShardedCall, sums: Tensor) -> Tensor:
    """[B, H, L, planes] from [B, H, L] or [2, B, H, L]."""
    return sums.movedim(0, -1) if call.terms.logs else sums.unsqueeze(-1)


def _planes_first(call: ShardedCall, sums: Tensor) -> Tensor:
    return sums.movedim(-1, 0).contiguous() if call.terms.logs else sums.squeeze(-1)


def cut_by_heads(call: ShardedCall, name: str) -> Tensor | None:
    """The bias or mask that ``Ulysses`` takes: of this rank's heads, or rows that will travel."""
    x: Tensor | None = getattr(call, name)
    if x is None:
        return None
    size = call.transport.size
    if name in call.has_rows:
        heads = size if x.shape[1] == 1 else x.shape[1]  # a copy for each rank
        return x.expand(-1, heads, call.queries.lengths[call.rank], -1)
    return x if x.shape[1] == 1 else x.chunk(size, dim=1)[call.rank]


def _rows_to_heads(call: ShardedCall, name: str) -> Tensor | None:
    """All rows of a bias or mask for this rank's heads."""
    x: Tensor | None = getattr(call, name)
    if x is None or name not in call.has_rows:
        return x
    is_bool = x.dtype == torch.bool
    sent = x.contiguous().view(torch.uint8) if is_bool else x
    (found,) = _to_heads(call, [(sent, call.queries)], f"rows of {name}")
    return found.view(torch.bool) if is_bool else found


def _rows_to_tokens(call: ShardedCall, name: str, grad: Tensor | None) -> Tensor | None:
    """The gradient of this rank's rows for all heads."""
    if grad is None or name not in call.has_rows:
        return grad
    (found,) = _to_tokens(call, [(grad, call.queries)], f"gradients of {name}")
    return found


def _to_heads(call: ShardedCall, named: list[tuple[Tensor, Shards]], what: str) -> list[Tensor]:
    """This rank's heads of all tokens, from all heads of its tokens."""
    ranks = range(call.transport.size)
    chunks = [x.chunk(len(ranks), dim=1) for x, _ in named]
    parts = [[chunk[rank] for chunk in chunks] for rank in ranks]
    shapes = [
        [
            (*c[0].shape[:2], whose.lengths[rank], c[0].shape[3])
            for c, (_, whose) in zip(chunks, named, strict=True)
        ]
        for rank in ranks
    ]
    found = call.transport.all_to_all(parts, shapes, what)
    return [whose.join([of_rank[i] for of_rank in found]) for i, (_, whose) in enumerate(named)]


def _to_tokens(call: ShardedCall, named: list[tuple[Tensor, Shards]], what: str) -> list[Tensor]:
    """All heads of this rank's tokens, from its heads of all tokens."""
    ranks = range(call.transport.size)
    parts = [[whose.take(x, rank) for x, whose in named] for rank in ranks]
    shapes = [[tuple(x.shape) for x in parts[call.rank]]] * len(ranks)
    found = call.transport.all_to_all(parts, shapes, what)
    return [torch.cat([of_rank[i] for of_rank in found], dim=1) for i in range(len(named))]
