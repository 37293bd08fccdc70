"""What divides sums over all keys, once, behind the last block; and its gradient.

With n_i counted over the whole sequence, num_i and z_i summed over all blocks:

    normalize="length"                          normalize="sum"
    o_i = gain n_i^-alpha num_i                 o_i = num_i / (z_i + floor n_i)
    g_i = gain n_i^-alpha do_i                  g_i = do_i / (z_i + floor n_i)
    e_i = dz_i                                  e_i = dz_i - g_i . o_i

g and e are the gradients of num and z, so blocks need neither o nor any statistic of a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flashpoint.distributed.block_calls import RowGradients
from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.layout import Range
from flashpoint.distributed.transport import widened
from flashpoint.ops.normalizer import normalizer


def divide(
    call: ShardedCall,
    queries: Sequence[Range],
    numerators: Tensor,
    sums: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The result of this rank's queries in a dtype, rounded once."""
    if not call.divides:
        return _times(numerators, _factor(call, queries, numerators), dtype)
    assert sums is not None
    return _times(numerators, _reciprocal(call, queries, sums), dtype)


def _times(x: Tensor, factor: float | Tensor, dtype: torch.dtype) -> Tensor:
    """x * factor in fp32 at least, rounded on its way out: memory sees nothing wide."""
    if x.dtype != dtype:
        x = x.to(widened(x.dtype))
    return torch.mul(x, factor, out=x.new_empty(x.shape, dtype=dtype))


def undivide(
    call: ShardedCall,
    queries: Sequence[Range],
    do: Tensor | None,
    dsums: Tensor | None,
    o: Tensor | None,
    sums: Tensor | None,
    dtype: torch.dtype,
) -> RowGradients:
    """The gradients of numerators, in ``dtype``, and of sums, from those of the results."""
    shape = call.query_shape(call.rank, call.sizes.value_dim)
    wide = widened(dtype)
    if do is None:
        assert dsums is not None
        do = dsums.new_zeros(shape, dtype=wide)
    if not call.divides:
        return RowGradients(_times(do, _factor(call, queries, do), dtype), dsums)
    assert o is not None
    assert sums is not None
    g = (do.to(wide) * _reciprocal(call, queries, sums)).to(dtype)
    share = -(g.to(wide) * o.to(wide)).sum(-1)  # of g as values meet it: the two nearly cancel
    if dsums is None:
        of_sums = torch.stack((share, torch.zeros_like(share))) if call.terms.logs else share
    elif call.terms.logs:
        of_sums = torch.stack((dsums[0] + share, dsums[1]))
    else:
        of_sums = dsums + share
    return RowGradients(g, of_sums)


def count_seen(call: ShardedCall, queries: Sequence[Range], device: torch.device) -> Tensor:
    """How many keys of the whole sequence each query sees: [#B, 1, Lq of these, 1]."""
    runs = [torch.arange(start, stop, device=device) for start, stop in queries]
    position = torch.cat(runs).view(1, 1, -1, 1) + call.offset
    end: Tensor = torch.full_like(position, call.keys.total)
    if call.documents is not None:
        position, end = call.documents.places(position - call.offset)
    elif call.key_lengths is not None:
        end = call.key_lengths.clamp(max=call.keys.total).view(-1, 1, 1, 1)
    left, right = call.terms.left, call.terms.right
    first = torch.zeros_like(position) if left is None else (position - left).clamp(min=0)
    last = end if right is None else (position + right + 1).clamp(max=end)
    if not _has_bool_mask(call):
        return (last - first).clamp(min=0)
    assert call.mask is not None
    key = torch.arange(call.keys.total, device=device)
    return (call.mask & (key >= first) & (key < last)).sum(-1, keepdim=True)


def _has_bool_mask(call: ShardedCall) -> bool:
    """True where a mask hides keys; others are added to scores, and hide nothing."""
    return call.mask is not None and call.mask.dtype == torch.bool


def _sees_all(call: ShardedCall) -> bool:
    """True where every query sees all keys: n_i is a number, and nothing is to be counted."""
    is_one = call.documents is None and call.key_lengths is None
    has_window = call.terms.left is not None or call.terms.right is not None
    return is_one and not has_window and not _has_bool_mask(call)


def _power(call: ShardedCall, queries: Sequence[Range], like: Tensor) -> float | Tensor:
    """n_i ** -alpha; 1 where a length given as a number is in gain or floor already."""
    if call.terms.alpha == 0.0:
        return 1.0
    if _sees_all(call):
        return normalizer(max(call.keys.total, 1), call.terms.alpha)
    dtype = widened(like.dtype)
    if call.terms.length == "keys":  # of each document; of one sequence it is a number by now
        assert call.documents is not None
        runs = [torch.arange(start, stop, device=like.device) for start, stop in queries]
        _, counts = call.documents.places(torch.cat(runs).view(1, 1, -1, 1))
    else:
        counts = count_seen(call, queries, like.device)
    return normalizer(counts, call.terms.alpha, dtype)


def _factor(call: ShardedCall, queries: Sequence[Range], like: Tensor) -> float | Tensor:
    return call.terms.gain * _power(call, queries, like)


def _reciprocal(call: ShardedCall, queries: Sequence[Range], sums: Tensor) -> Tensor:
    """1 over what divides rows; 0 for a row of zeros without a floor."""
    z = (sums[0] if call.terms.logs else sums).unsqueeze(-1)
    divisor = z + call.terms.floor * _power(call, queries, z)
    nothing = divisor == 0
    return divisor.masked_fill(nothing, 1).reciprocal().masked_fill(nothing, 0)
