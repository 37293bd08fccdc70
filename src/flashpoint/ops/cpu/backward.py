"""Backward on the CPU. With w_ij = m_ij h(s_ij) and g_i = gain * n_i ** -alpha * do_i:

    dv_j = sum_i w_ij g_i            dw_ij = g_i . v_j            ds_ij = m_ij dw_ij h'(s_ij)
    dq_i = scale * sum_j ds_ij k_j   dk_j = scale * sum_i ds_ij q_i
    dbias_ij = ds_ij                 dmask_ij = dw_ij h(s_ij)     summed where they broadcast

With sums z_i = sum_j w_ij and their gradients dz_i, a number joins each row:

    dw_ij = g_i . v_j + e_i          e_i = dz_i                                normalize="length"
    g_i = do_i / (z_i + floor n_i)   e_i = dz_i - g_i . o_i                    normalize="sum"

and for gradients dl_i of sum_j w_ij log w_ij, dl_i (1 + log w_ij).

Tiles are made transposed, [keys, rows]: then four of the five products read them as they lie in
memory, and the fifth yields dq transposed, which is turned once at the end.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from flashpoint.ops.cpu.native import call as native
from flashpoint.ops.cpu.scores import (
    ScoreTiles,
    dtype_of_products,
    hide_,
    product_into,
    scaled_product,
)
from flashpoint.ops.cpu.tiling import Group, Tile
from flashpoint.ops.spec import TINY, Terms


def backward(
    of_sums: Sequence[Tensor | None],
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's shape and dtype.

    ``of_sums``: the gradient of the sums, and o and the sums where these divide; or nothing.
    """
    if bias is mask is key_lengths is None and not of_sums:
        again = native.repeat(terms, q, k, v, do)
        if again is not None:
            return again
    has_sums, is_empty = len(of_sums) > 0, q.numel() == 0 or k.numel() == 0
    dtype = dtype_of_products(q.dtype, bias, mask, terms, has_sums=has_sums)
    kernel = None if is_empty else native.find_kernel(q, k, v, bias, mask, terms, dtype)
    if kernel is not None:
        given = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask}
        given["g"] = do.expand(*q.shape[:3], v.shape[3])
        given |= zip(("dsums", "o", "sums"), of_sums, strict=False)
        needs = {"need_dbias": need_dbias, "need_dmask": need_dmask}
        return native.differentiate(kernel, given, key_lengths, terms, **needs)
    tiles = ScoreTiles(q, k, bias, mask, key_lengths, terms, is_backward=True, has_sums=has_sums)
    rows = _Rows(tiles, do, *of_sums)
    return _differentiate(do, q, k, v, bias, mask, tiles, rows, need_dbias, need_dmask)


class _Rows:
    """What queries multiply their gradients by, and what they add to those of their weights."""

    def __init__(self, tiles: ScoreTiles, do: Tensor, *of_sums: Tensor | None) -> None:
        self.tiles, self.do = tiles, do
        self.dsums, self.o, self.sums = of_sums or (None, None, None)

    def slope_of_logs(self, group: Group) -> Tensor | None:
        """What a group multiplies log w by: [samples, heads, queries, 1], or None."""
        if self.dsums is None or not self.tiles.terms.logs:
            return None
        return self.tiles.moved * self.dsums[1, group.batch, group.q_heads].unsqueeze(-1)

    def of(self, group: Group) -> tuple[float | Tensor, Tensor | None]:
        """Both for a group: [samples, heads, queries, 1]."""
        tiles, at = self.tiles, (group.batch, group.q_heads)
        num_queries = tiles.plan.num_queries
        offset = None
        if self.dsums is not None:
            dsums = self.dsums[0] if tiles.terms.logs else self.dsums
            offset = tiles.moved * dsums[at].unsqueeze(-1)
        slope = self.slope_of_logs(group)
        if slope is not None and offset is not None:  # of weights that lack the scale's share
            offset = offset + slope * (1.0 + math.log(tiles.moved))
        if self.o is None or self.sums is None:
            return tiles.normalizer(group, 0, num_queries), offset
        sums = self.sums[0] if tiles.terms.logs else self.sums
        factor = tiles.moved / tiles.divisor(sums[at].unsqueeze(-1), group, 0, num_queries)
        do, o = (x[at].to(tiles.sums_dtype) for x in (self.do, self.o))
        share = (do * factor * o).sum(-1, keepdim=True)  # of g as values meet it
        return factor, -share if offset is None else offset - share


def _differentiate(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    tiles: ScoreTiles,
    rows: "_Rows",
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    grads = [x.new_empty(x.shape) for x in (q, k, v)]
    dbias = _zeros(bias, tiles.sums_dtype) if need_dbias else None
    dmask = _zeros(mask, tiles.sums_dtype) if need_dmask else None
    if tiles.plan.is_empty:
        for grad in grads:
            grad.zero_()
    else:
        of_inputs = (grads[0], grads[1], grads[2])
        work = _Backward((do, q, k, v), tiles, rows, of_inputs, dbias, dmask)
        for group in tiles.plan.groups():
            work.run(group)
    if bias is not None and dbias is not None:
        grads.append(dbias.to(bias.dtype))
    if mask is not None and dmask is not None:
        grads.append(dmask.to(mask.dtype))
    return grads


def _zeros(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.new_zeros(x.shape, dtype=dtype)


class _Backward:
    """The passes over all groups of heads: key tiles outside, query tiles inside."""

    def __init__(
        self,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        tiles: ScoreTiles,
        rows: _Rows,
        grads: tuple[Tensor, Tensor, Tensor],
        dbias: Tensor | None,
        dmask: Tensor | None,
    ) -> None:
        self.do, self.q, self.k, self.v = inputs
        self.dq, self.dk, self.dv = grads
        self.dbias, self.dmask = dbias, dmask
        self.tiles, self.plan, self.rows = tiles, tiles.plan, rows
        self.offset: Tensor | None = None  # of the group at work, as the next
        self.slope: Tensor | None = None
        self.dw_buffer = torch.empty_like(tiles.buffer)
        has_whole_groups = self.plan.has_one_tile and self.plan.key_lengths is None
        self.in_place = has_whole_groups and self.dq.dtype == tiles.dtype

    def run(self, group: Group) -> None:
        """Write the gradients of one group of heads."""
        plan, scale = self.plan, self.tiles.scale
        normalizer, self.offset = self.rows.of(group)
        self.slope = self.rows.slope_of_logs(group)
        if self.in_place:
            self._run_whole(group, normalizer)
            return
        dq: dict[int, Tensor] = {}  # by a tile's first query, transposed: [size, D, stacked rows]
        for j0, j1 in plan.key_ranges(group):
            self._run_keys(group, j0, j1, normalizer, dq)
        for i0, i1 in plan.query_ranges():
            target = self.dq[group.batch, group.q_heads, i0:i1]
            if i0 in dq:
                part = dq[i0] if scale == 1.0 else dq[i0].mul_(scale)
                part = part.view(group.samples, group.heads, -1, plan.stack, i1 - i0)
                stacked = target.unflatten(1, (group.heads, plan.stack))
                stacked.copy_(part.permute(0, 1, 3, 4, 2))
            else:  # these queries see nothing
                target.zero_()
        beyond = slice(plan.existing_keys(group), None)
        for grad in (self.dk, self.dv):
            grad[group.batch, group.kv_heads, beyond] = 0.0

    def _run_whole(self, group: Group, normalizer: float | Tensor) -> None:
        """Write the gradients of a group that is one tile straight to their place."""
        tiles, tile = self.tiles, Tile(0, self.plan.num_queries, 0, self.plan.num_keys)
        q_rows = tiles.queries(self.q, group, tile.i0, tile.i1)
        k_rows, v_rows = (tiles.keys(x, group, tile.j0, tile.j1) for x in (self.k, self.v))
        g_rows, factor = self._gradient(group, tile, normalizer)
        w, ds = self._weights_and_gradient(q_rows, k_rows, v_rows, g_rows, factor, group, tile)
        for grad, heads, a, b, scale in (
            (self.dq, group.q_heads, ds.mT, k_rows, tiles.scale),
            (self.dk, group.kv_heads, ds, q_rows, tiles.scale),
            (self.dv, group.kv_heads, w, g_rows, factor),
        ):
            out = grad[group.batch, heads].view(group.size, a.shape[1], b.shape[2])
            scaled_product(a, b, scale, out)

    def _run_keys(
        self, group: Group, j0: int, j1: int, normalizer: float | Tensor, dq: dict[int, Tensor]
    ) -> None:
        """Finish dk and dv of keys [j0, j1) and add their share to dq."""
        tiles = self.tiles
        k_rows, v_rows = (tiles.keys(x, group, j0, j1) for x in (self.k, self.v))
        k_columns = tiles.as_factor(k_rows.mT)
        dk: Tensor | None = None
        dv: Tensor | None = None
        factor = 1.0
        for tile in self.plan.tiles_of_keys(j0, j1):
            q_rows = tiles.queries(self.q, group, tile.i0, tile.i1)
            g_rows, factor = self._gradient(group, tile, normalizer)
            w, ds = self._weights_and_gradient(q_rows, k_rows, v_rows, g_rows, factor, group, tile)
            dv = tiles.accumulate(dv, w, g_rows)
            dk = tiles.accumulate(dk, ds, q_rows)
            dq[tile.i0] = tiles.accumulate(dq.get(tile.i0), k_columns, ds)
        for grad, total, scale in ((self.dk, dk, tiles.scale), (self.dv, dv, factor)):
            target = grad[group.batch, group.kv_heads, j0:j1]
            if total is None:  # nobody sees these keys
                target.zero_()
            else:
                total = total if scale == 1.0 else total.mul_(scale)
                target.copy_(total.view(target.shape))

    def _gradient(
        self, group: Group, tile: Tile, normalizer: float | Tensor
    ) -> tuple[Tensor, float]:
        """g of the tile's queries, [size, stacked rows, Dv], short of a factor they share."""
        if not isinstance(normalizer, Tensor):
            return self.tiles.queries(self.do, group, tile.i0, tile.i1), normalizer
        if normalizer.shape[2] > 1:
            normalizer = normalizer[:, :, tile.i0 : tile.i1]
        do = self.do[group.batch, group.q_heads, tile.i0 : tile.i1] * normalizer
        rows = self.plan.stack * (tile.i1 - tile.i0)
        do = do.to(self.tiles.dtype).reshape(group.size, rows, do.shape[-1])
        return do.contiguous(), 1.0

    def _weights_and_gradient(
        self,
        q_rows: Tensor,
        k_rows: Tensor,
        v_rows: Tensor,
        g_rows: Tensor,
        factor: float,
        group: Group,
        tile: Tile,
    ) -> tuple[Tensor, Tensor]:
        """w and ds of the tile, both transposed: [size, keys, stacked rows]."""
        tiles = self.tiles
        shape = (group.size, k_rows.shape[1], q_rows.shape[1])
        s = product_into(tiles.buffer, shape, k_rows, q_rows.mT, tiles.scale)
        dw = product_into(self.dw_buffer, shape, v_rows, g_rows.mT, factor)
        tiles.add_bias_(self._grid(s, group, tile), group, tile)
        factors = tiles.factors
        if factors is not None:
            factors = self.plan.take_scores(factors, group, tile)
        if self.offset is not None:
            self._grid(dw, group, tile).add_(self._rows_of(self.offset, group, tile))
        if self.slope is not None:
            logs = self._grid(tiles.activation.weigh_(s.clone()), group, tile)
            logs = (logs if factors is None else logs.mul_(factors)).clamp_(min=TINY).log_()
            self._grid(dw, group, tile).addcmul_(logs, self._rows_of(self.slope, group, tile))
        visible = tiles.visible(group, tile)
        if visible is not None:
            visible = visible.mT.contiguous().mT  # as the tiles lie in memory
        if factors is not None:
            if self.dmask is not None:
                gradient = tiles.activation.weigh_(s.clone()).mul_(dw)
                self._add(self.dmask, gradient, visible, group, tile)
            self._grid(dw, group, tile).mul_(factors)
        w, ds = tiles.activation.differentiate_(s, dw)
        if visible is not None:
            hide_(self._grid(w, group, tile), visible)
            hide_(self._grid(ds, group, tile), visible)
        if factors is not None:
            self._grid(w, group, tile).mul_(factors)
        if self.dbias is not None:
            self._add(self.dbias, ds, None, group, tile)
        return w, ds

    def _rows_of(self, x: Tensor, group: Group, tile: Tile) -> Tensor:
        """A tile's share of [samples, heads, queries, 1], as it meets a grid."""
        return x[:, :, tile.i0 : tile.i1].unflatten(1, (group.heads, self.plan.stack))

    def _add(
        self, total: Tensor, x: Tensor, visible: Tensor | None, group: Group, tile: Tile
    ) -> None:
        """Add a transposed tile to its place in total, summed over axes that broadcast there."""
        grid = self._grid(x, group, tile)
        if visible is not None:
            hide_(grid, visible)
        part = self.plan.take_scores(total, group, tile)
        part.add_(grid.sum_to_size(part.shape))

    def _grid(self, x: Tensor, group: Group, tile: Tile) -> Tensor:
        """A transposed tile as [samples, heads, stack, queries, keys]."""
        rows = (group.samples, group.heads, x.shape[1], self.plan.stack, tile.i1 - tile.i0)
        return x.view(rows).permute(0, 1, 3, 4, 2)
