"""The operator's own calls of a block, forward and backward."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.distributed.blocks import Block
from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.scores import cut_scores
from flashpoint.ops import reference
from flashpoint.ops.library import operator_for
from flashpoint.ops.spec import Terms


def attend_block(
    call: ShardedCall, block: Block, terms: Terms, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The operator's result for a block, and the rows' sums where the call has them."""
    inputs = _inputs(call, block, terms, q, k, v)
    if call.impl == "reference":
        o, sums = _reference_for(block)(*inputs)
    else:
        operator = operator_for(_form(block), call.impl, q, with_sums=call.has_sums)
        o, *rest = operator.run(*inputs) if call.has_sums else (operator.run(*inputs),)
        sums = rest[0] if rest else None
    if block.ends is not None:
        o, sums = _as_batch(o), None if sums is None else sums.unsqueeze(-3)
    return o, sums if call.has_sums else None


def add_block(
    call: ShardedCall, block: Block, terms: Terms, q: Tensor, k: Tensor, v: Tensor, place: "Place"
) -> Tensor | None:
    """Take the operator's result for a block to its place; gives the sums."""
    if call.impl == "triton" and block.ends is None:
        from flashpoint.ops.gpu.attend import launch_forward  # there may be no Triton

        inputs = _inputs(call, block, terms, q, k, v)
        sums = launch_forward(call.has_sums, *inputs, totals=place.totals, overwrites=place.is_new)
        return sums[0] if call.has_sums else None
    o, of_rows = attend_block(call, block, terms, q, k, v)
    place.take(o)
    return of_rows


def differentiate_block(
    call: ShardedCall,
    block: Block,
    terms: Terms,
    grads: "RowGradients",
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> list[Tensor]:
    """dq, dk and dv of a block, then dbias and dmask where the call needs them."""
    inputs = _inputs(call, block, terms, q, k, v)
    grads = grads.rows(block.rows)
    if block.ends is not None:
        grads = grads.in_a_row()
    if call.impl == "reference":
        found = _differentiate_reference(grads, block, inputs, call.needs)
    else:
        operator = operator_for(_form(block), call.impl, q, with_sums=call.has_sums)
        of_sums = (grads.sums, *grads.kept) if call.has_sums else ()
        found = operator.run_backward(grads.o, *of_sums, *inputs, *call.needs)
    return found if block.ends is None else [_as_batch(x) for x in found]


def add_gradients(
    call: ShardedCall,
    block: Block,
    terms: Terms,
    grads: "RowGradients",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    place: "Place",
) -> list[Tensor]:
    """Take dq of a block to its place; gives dk and dv, then dbias and dmask if needed."""
    if call.impl == "triton" and block.ends is None:
        from flashpoint.ops.gpu.attend import launch_backward  # there may be no Triton

        inputs, grads = _inputs(call, block, terms, q, k, v), grads.rows(block.rows)
        of_sums = (grads.sums, *grads.kept) if call.has_sums else ()
        totals = place.totals.zero_() if place.is_new else place.totals
        dbias, dmask = call.needs
        needs = {"need_dbias": dbias, "need_dmask": dmask}
        return launch_backward(of_sums, grads.o, *inputs, **needs, totals=totals)
    dq, *rest = differentiate_block(call, block, terms, grads, q, k, v)
    place.take(dq)
    return rest


class Place(NamedTuple):
    """Where a block's result goes.

    Attributes:
        totals: sums of what is there, fp32 at least.
        is_new: whether nothing is there yet, not even zeros.
    """

    totals: Tensor
    is_new: bool = False

    def take(self, part: Tensor) -> None:
        """Add a part."""
        if self.is_new:
            self.totals.copy_(part)
        else:
            self.totals.add_(part)


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

    def in_a_row(self) -> "RowGradients":
        """The same as sequences one after another have them."""
        o, sums = self.kept
        of_sums, sums = (None if x is None else x.squeeze(-3) for x in (self.sums, sums))
        return RowGradients(
            _in_a_row(self.o), of_sums, (None if o is None else _in_a_row(o), sums)
        )


def _form(block: Block) -> str:
    return "dense" if block.ends is None else "varlen"


def _reference_for(block: Block) -> Any:
    return reference.attention if block.ends is None else reference.attention_varlen


def _inputs(
    call: ShardedCall, block: Block, terms: Terms, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Any, ...]:
    """A block's arguments of the operator."""
    terms = terms._replace(left=block.left, right=block.right)
    places = [(q, block.rows), (k, block.columns), (v, block.columns)]
    cut = [x if (at.start, at.stop) == (0, x.shape[2]) else x[:, :, at] for x, at in places]
    if block.ends is None:
        scores = [cut_scores(x, block) for x in (call.bias, call.mask)]
        return (*cut, *scores, block.lengths(call), terms)
    ends = block.ends.tensors(q.device)
    return (*map(_in_a_row, cut), None, None, *ends, *block.ends.longest, terms)


def _in_a_row(x: Tensor) -> Tensor:
    """[T, H, D] from [1, H, T, D]."""
    return x[0].transpose(0, 1)


def _as_batch(x: Tensor) -> Tensor:
    """[1, H, T, D] from [T, H, D]."""
    return x.transpose(0, 1).unsqueeze(0)


def _differentiate_reference(
    grads: RowGradients, block: Block, inputs: tuple[Any, ...], needs: tuple[bool, bool]
) -> list[Tensor]:
    """By autograd, which makes the block once more."""
    wanted = (True, True, True, *needs)
    with torch.enable_grad():
        given = [
            x.detach().requires_grad_() if want else x
            for x, want in zip(inputs, wanted, strict=False)
        ]
        o, sums = _reference_for(block)(*given, *inputs[5:])
        pairs = [(o, grads.o), (sums, grads.sums)]
        asked = [(y, dy) for y, dy in pairs if dy is not None]
        leaves = [x for x, want in zip(given, wanted, strict=True) if want]
        return list(torch.autograd.grad([y for y, _ in asked], leaves, [dy for _, dy in asked]))
