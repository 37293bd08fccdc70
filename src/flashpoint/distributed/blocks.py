"""Some queries over some keys, both somewhere in longer sequences: the operator's own calls.

A query at position p sees the keys p - left <= j <= p + right. In a call of its own a block has
other positions: its last query stands at its last key. With queries [p0, p1) and keys [c, d) that
moves them by p1 - d, and the window with them. Queries and keys that see nothing of one another
are cut off first; what is left has a window of its own that reaches to no negative side.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.layout import Range, Shards
from flashpoint.ops import reference
from flashpoint.ops.library import operator_for
from flashpoint.ops.spec import Terms


class Block(NamedTuple):
    """Queries and keys that see one another.

    Attributes:
        rows, columns: where they lie in the tensors given.
        first_key: of the whole sequence, in ``columns``; None where samples have all their keys.
        left, right: the window as the block's own call has it.
    """

    rows: slice
    columns: slice
    first_key: int | None
    left: int | None
    right: int | None

    def lengths(self, call: ShardedCall) -> Tensor | None:
        """How many of the block's keys exist in every sample."""
        if call.key_lengths is None or self.first_key is None:
            return None
        num_keys = self.columns.stop - self.columns.start
        return (call.key_lengths - self.first_key).clamp(0, num_keys)


def blocks_of(
    queries: Sequence[Range], keys: Sequence[Range], call: ShardedCall
) -> Iterator[Block]:
    """Pairs of runs of queries and keys of which somebody sees something."""
    num_queries, num_keys = (sum(stop - start for start, stop in x) for x in (queries, keys))
    left, right = call.terms.left, call.terms.right
    if left is right is None and call.key_lengths is None:
        if num_queries and num_keys:  # order does not matter
            yield Block(slice(0, num_queries), slice(0, num_keys), None, None, None)
        return
    row = 0
    for start, stop in queries:
        column = 0
        for first, last in keys:
            positions = (start + call.offset, stop + call.offset)
            block = _meet(positions, (first, last), left, right)
            if block is not None:
                yield block._replace(
                    rows=_moved(block.rows, row), columns=_moved(block.columns, column)
                )
            column += last - first
        row += stop - start


def who_sees(call: ShardedCall) -> tuple[tuple[bool, ...], ...]:
    """By rank of queries and rank of keys, whether anybody sees anything."""
    return _who_sees(call.queries, call.keys, call.offset, call.terms.left, call.terms.right)


@functools.lru_cache(maxsize=64)
def _who_sees(
    queries: Shards, keys: Shards, offset: int, left: int | None, right: int | None
) -> tuple[tuple[bool, ...], ...]:
    def sees(mine: Sequence[Range], theirs: Sequence[Range]) -> bool:
        return any(
            _meet((start + offset, stop + offset), held, left, right) is not None
            for start, stop in mine
            for held in theirs
        )

    return tuple(tuple(sees(mine, theirs) for theirs in keys.ranges) for mine in queries.ranges)


def _moved(x: slice, by: int) -> slice:
    return slice(x.start + by, x.stop + by)


def _meet(positions: Range, keys: Range, left: int | None, right: int | None) -> Block | None:
    """The part of both that see one another, counted from their first; None if nobody does."""
    (p0, p1), (c, d) = positions, keys
    stop = d if right is None else min(d, p1 + right)
    start = c if left is None else max(c, p0 - left)
    lowest = p0 if right is None else max(p0, start - right)
    highest = p1 if left is None else min(p1, stop + left)
    if start >= stop or lowest >= highest:
        return None
    moved = highest - stop
    if right is not None:
        right = None if lowest + right >= stop - 1 else right + moved
    if left is not None:
        left = None if highest - 1 - left <= start else left - moved
    return Block(slice(lowest - p0, highest - p0), slice(start - c, stop - c), start, left, right)


def attend_block(
    call: ShardedCall, block: Block, terms: Terms, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The operator's result for a block, and the rows' sums where the call has them."""
    q, k, v = (_cut(x, at) for x, at in _places(block, q, k, v))
    terms = terms._replace(left=block.left, right=block.right)
    inputs = (q, k, v, None, None, block.lengths(call), terms)
    if call.impl == "reference":
        o, sums = reference.attention(*inputs)
        return o, sums if call.has_sums else None
    found = operator_for("dense", call.impl, q, with_sums=call.has_sums).run(*inputs)
    return found if call.has_sums else (found, None)


def differentiate_block(
    call: ShardedCall,
    block: Block,
    terms: Terms,
    grads: "RowGradients",
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> list[Tensor]:
    """dq, dk and dv of a block."""
    q, k, v = (_cut(x, at) for x, at in _places(block, q, k, v))
    grads = grads.rows(block.rows)
    terms = terms._replace(left=block.left, right=block.right)
    inputs = (q, k, v, None, None, block.lengths(call), terms)
    if call.impl == "reference":
        return _differentiate_reference(grads, inputs)
    operator = operator_for("dense", call.impl, q, with_sums=call.has_sums)
    of_sums = (grads.sums, *grads.kept) if call.has_sums else ()
    return operator.run_backward(grads.o, *of_sums, *inputs, False, False)


class RowGradients(NamedTuple):
    """Gradients of the results by rows of queries.

    Attributes:
        o: of the result.
        sums: of the rows' sums; None where nobody asks for any.
        kept: the result and the sums, where these divided it in the operator's own call.
    """

    o: Tensor
    sums: Tensor | None = None
    kept: tuple[Tensor | None, Tensor | None] = (None, None)

    def rows(self, rows: slice) -> "RowGradients":
        """Those of some rows."""
        o, sums = self.kept
        kept = (None if o is None else o[:, :, rows], None if sums is None else sums[..., rows])
        of_sums = None if self.sums is None else self.sums[..., rows]
        return RowGradients(self.o[:, :, rows], of_sums, kept)


def _places(block: Block, q: Tensor, k: Tensor, v: Tensor) -> list[tuple[Tensor, slice]]:
    return [(q, block.rows), (k, block.columns), (v, block.columns)]


def _cut(x: Tensor, at: slice) -> Tensor:
    return x if (at.start, at.stop) == (0, x.shape[2]) else x[:, :, at]


def _differentiate_reference(grads: RowGradients, inputs: Any) -> list[Tensor]:
    """By autograd, which makes the block once more."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        o, sums = reference.attention(*leaves, *inputs[3:])
        pairs = [(o, grads.o), (sums, grads.sums)]
        asked = [(y, dy) for y, dy in pairs if dy is not None]
        return list(torch.autograd.grad([y for y, _ in asked], leaves, [dy for _, dy in asked]))
