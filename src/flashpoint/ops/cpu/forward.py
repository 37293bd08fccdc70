"""Forward on the CPU: o = normalizer * sum over key tiles of h(scores) @ v.

With sums: those of the weights too, by which the result may be divided.
"""

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashpoint.ops.cpu.native import call as native
from flashpoint.ops.cpu.scores import ScoreTiles, dtype_of_products, scaled_product
from flashpoint.ops.cpu.tiling import Group
from flashpoint.ops.spec import TINY, Terms

HAS_NUMPY = find_spec("numpy") is not None  # PyTorch, and its kernels on the Hub, do without
if TYPE_CHECKING or HAS_NUMPY:
    from flashpoint.ops.cpu.small import attend_small

SMALL = 2**18  # numbers in q times numbers in k, where a call costs more than its arithmetic
_NUMPY_DTYPES = (torch.float32, torch.float64)


def forward(
    has_sums: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
) -> list[Tensor]:
    """[B, Hq, Lq, Dv] from q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv].

    With sums those of each row's weights behind it, [B, Hq, Lq] in fp32 (fp64 for fp64); with
    logs [2, B, Hq, Lq]: those of w log w, too.
    """
    is_plain = bias is mask is key_lengths is None and not has_sums
    if is_plain:
        again = native.repeat(terms, q, k, v)
        if again is not None:
            return again
    num_products = q.numel() * k.numel()
    dtype = dtype_of_products(q.dtype, bias, mask, terms, has_sums=has_sums)
    kernel = native.find_kernel(q, k, v, bias, mask, terms, dtype) if num_products else None
    if kernel is not None:
        sums = [q.new_empty(q.shape[:3], dtype=dtype)] if has_sums else []
        return [native.attend(kernel, q, k, v, bias, mask, key_lengths, terms, *sums), *sums]
    if is_plain and HAS_NUMPY and 0 < num_products <= SMALL and q.dtype in _NUMPY_DTYPES:
        sees_all = terms.left is terms.right is None
        if sees_all and terms.bias == 0.0 and not (q.is_neg() or k.is_neg() or v.is_neg()):
            return [attend_small(q, k, v, terms)]
    tiles = ScoreTiles(q, k, bias, mask, key_lengths, terms, is_backward=False, has_sums=has_sums)
    o = q.new_empty(*q.shape[:3], v.shape[3])
    if not has_sums:
        return [_fill(o, q, k, v, tiles)]
    planes = q.new_empty(1 + terms.logs, *q.shape[:3], dtype=tiles.sums_dtype)
    _fill_with_sums(o, planes, q, k, v, tiles)
    return [o, planes if terms.logs else planes[0]]


def _fill(o: Tensor, q: Tensor, k: Tensor, v: Tensor, tiles: ScoreTiles) -> Tensor:
    """Write the result of a call without sums."""
    plan = tiles.plan
    if plan.is_empty:
        return o.zero_()
    # A group that is one tile can go straight to its place, which spares short sequences a pass.
    in_place = o.dtype == tiles.dtype and plan.has_one_tile
    for group in plan.groups():
        for i0, i1 in plan.query_ranges():
            target = o[group.batch, group.q_heads, i0:i1]
            normalizer = tiles.normalizer(group, i0, i1)
            if in_place and not isinstance(normalizer, Tensor):
                rows = target.view(group.size, plan.stack * (i1 - i0), v.shape[3])
                _attend_rows(q, k, v, tiles, group, i0, i1, rows, normalizer)
            else:
                rows, _ = _attend_rows(q, k, v, tiles, group, i0, i1)
                torch.mul(rows.view(target.shape), normalizer, out=target)
    return o


def _fill_with_sums(
    o: Tensor, planes: Tensor, q: Tensor, k: Tensor, v: Tensor, tiles: ScoreTiles
) -> None:
    """Write the result and the rows' sums, of w and with logs of w log w, to ``planes``."""
    plan, terms = tiles.plan, tiles.terms
    if plan.is_empty:
        o.zero_()
        planes.zero_()
        return
    for group in plan.groups():
        for i0, i1 in plan.query_ranges():
            target = o[group.batch, group.q_heads, i0:i1]
            rows, total = _attend_rows(q, k, v, tiles, group, i0, i1, with_sums=True)
            assert total is not None
            total = total.mul_(tiles.moved).view(*target.shape[:3], -1)
            rows = rows.view(target.shape)
            if terms.normalize == "sum":  # by a reciprocal, small sums would give infinity
                divisor = tiles.divisor(total[..., :1], group, i0, i1)
                torch.div(rows.mul_(tiles.moved), divisor, out=target)
            else:
                torch.mul(rows, tiles.normalizer(group, i0, i1), out=target)
            if terms.logs:  # of weights that have the scale's share
                total[..., 1] += math.log(tiles.moved) * total[..., 0]
            planes[:, group.batch, group.q_heads, i0:i1] = total.movedim(-1, 0)


def _attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: ScoreTiles,
    group: Group,
    i0: int,
    i1: int,
    out: Tensor | None = None,
    factor: float = 1.0,
    *,
    with_sums: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """sum_j w_ij v_j for queries [i0, i1), [size, stacked rows, Dv], and sum_j w_ij if asked for.

    The latter with those of w log w, if there are logs. With ``out``, for a single tile, the first
    are times the factor and written there.
    """
    q_rows = tiles.queries(q, group, i0, i1)
    sums = None
    if with_sums:
        sums = q.new_zeros((*q_rows.shape[:2], 1 + tiles.terms.logs), dtype=tiles.sums_dtype)
    total: Tensor | None = None
    for tile in tiles.plan.tiles_of_queries(group, i0, i1):
        k_rows, v_rows = (tiles.keys(x, group, tile.j0, tile.j1) for x in (k, v))
        w = tiles.weights(q_rows, k_rows, group, tile)
        if out is not None:
            return scaled_product(w, v_rows, factor, out), sums
        if sums is not None:
            sums[..., 0] += w.sum(-1)
            if tiles.terms.logs:
                sums[..., 1] += (w * w.clamp(min=TINY).log_()).sum(-1)
        total = tiles.accumulate(total, w, v_rows)
    if total is not None:
        return total, sums
    # None of these queries sees any key.
    shape = (group.size, q_rows.shape[1], v.shape[3])
    nothing = q.new_zeros(shape, dtype=tiles.sums_dtype) if out is None else out.zero_()
    return nothing, sums
