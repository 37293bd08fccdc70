"""Tiles of scores and weights: what forward and backward make of q, k, bias, mask and h alike."""

import math
from functools import cached_property

import torch
from torch import Tensor

from flashpoint.ops.cpu.activations import SMOOTH_IN_BF16, on_tiles
from flashpoint.ops.cpu.tiling import Group, Plan, Tile
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.spec import Terms

SMALLEST_INSIDE, LARGEST_INSIDE = 2.0**-30, 2.0**30  # factors that products take with them
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


class ScoreTiles:
    """Makes one tile after another in a buffer that they share.

    Attributes:
        plan: how the call is cut into tiles.
        dtype: what products are computed in.
        sums_dtype: what products are added up in.
        moved: the scale's share of the weights, where it stands behind h.
        factors, allowed: the mask, if it is one of numbers or one of booleans.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        key_lengths: Tensor | None,
        terms: Terms,
        *,
        is_backward: bool,
        has_sums: bool = False,
    ) -> None:
        self.terms, self.bias = terms, bias
        is_bool = mask is not None and mask.dtype == torch.bool
        self.allowed, self.factors = (mask, None) if is_bool else (None, mask)
        has_bias = bias is not None or terms.bias != 0.0
        self.scale, self.moved = terms.split_scale(q.shape[3], has_bias=has_bias)
        self.sums_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.dtype = dtype_of_products(q.dtype, bias, mask, terms, has_sums=has_sums)
        self.activation = on_tiles(terms.activation)
        width = self.dtype.itemsize // 2
        self.plan = Plan(q, k, key_lengths, terms, width, is_backward)

    @cached_property
    def buffer(self) -> Tensor:
        """Scores of a tile."""
        return torch.empty(self.plan.area, dtype=self.dtype, device="cpu")

    def queries(self, x: Tensor, group: Group, i0: int, i1: int) -> Tensor:
        """Rows of q in the products' dtype."""
        return self.as_factor(self.plan.take_queries(x, group, i0, i1))

    def keys(self, x: Tensor, group: Group, j0: int, j1: int) -> Tensor:
        """Rows of k or v in the products' dtype."""
        return self.as_factor(self.plan.take_keys(x, group, j0, j1))

    def as_factor(self, x: Tensor) -> Tensor:
        """Matrices as products take them best: bf16 dense, the others as they lie."""
        x = x.to(self.dtype)
        return x.contiguous() if self.dtype == torch.bfloat16 else x

    def weights(self, q_rows: Tensor, k_rows: Tensor, group: Group, tile: Tile) -> Tensor:
        """h(scores), masked: [size, stacked rows, keys]. Valid until the next tile."""
        shape = (group.size, q_rows.shape[1], k_rows.shape[1])
        s = product_into(self.buffer, shape, q_rows, k_rows.mT, self.scale)
        grid = (group.samples, group.heads, self.plan.stack, tile.i1 - tile.i0, shape[2])
        self.add_bias_(s.view(grid), group, tile)
        w = self.activation.weigh_(s)
        visible = self.visible(group, tile)
        if visible is not None:
            hide_(w.view(grid), visible)
        if self.factors is not None:
            w.view(grid).mul_(self.plan.take_scores(self.factors, group, tile))
        return w

    def add_bias_(self, grid: Tensor, group: Group, tile: Tile) -> None:
        """Add the bias to a tile of scores seen as [samples, heads, stack, queries, keys]."""
        if self.terms.bias != 0.0:
            grid.add_(self.terms.bias)
        if self.bias is not None:
            grid.add_(self.plan.take_scores(self.bias, group, tile))

    def visible(self, group: Group, tile: Tile) -> Tensor | None:
        """Booleans that broadcast to the grid of a tile; None where all see all."""
        window = self.plan.window(tile)
        if self.allowed is None:
            return window
        allowed = self.plan.take_scores(self.allowed, group, tile)
        return allowed if window is None else allowed & window

    def normalizer(self, group: Group, i0: int, i1: int) -> float | Tensor:
        """What queries [i0, i1) multiply sums of weights by: gain * n_i ** -alpha.

        A number, or [samples, heads, rows, 1].
        """
        return self._over_length(self.terms.gain * self.moved, group, i0, i1)

    def divisor(self, sums: Tensor, group: Group, i0: int, i1: int) -> Tensor:
        """What divides rows by their sums of weights, [samples, heads, rows, 1]."""
        divisor = sums + self._over_length(self.terms.floor, group, i0, i1)
        return divisor.masked_fill_(divisor == 0, math.inf)  # a row of zeros without a floor

    def _over_length(self, factor: float, group: Group, i0: int, i1: int) -> float | Tensor:
        alpha = self.terms.alpha
        if alpha == 0.0:
            return factor
        n = self.plan.num_keys if self.terms.length == "keys" else self._count(group, i0, i1)
        if isinstance(n, int):
            return factor * normalizer(max(n, 1), alpha)
        return factor * normalizer(n, alpha, self.sums_dtype)

    def accumulate(self, total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        """total + a @ b; None is where a sum begins."""
        if total is None:
            return torch.bmm(a, b).to(self.sums_dtype)
        if total.dtype == a.dtype:
            return total.baddbmm_(a, b)
        return total.add_(torch.bmm(a, b))

    def _count(self, group: Group, i0: int, i1: int) -> int | Tensor:
        """How many keys each query of [i0, i1) sees: one number, or [samples, heads, rows, 1]."""
        if self.allowed is None:
            return self.plan.count_seen(group, i0, i1)
        seen = torch.zeros((1, 1, 1, 1, 1), dtype=torch.int64)
        for tile in self.plan.tiles_of_queries(group, i0, i1):
            visible = self.visible(group, tile)
            assert visible is not None
            width = tile.j1 - tile.j0 if visible.shape[-1] == 1 else 1
            seen = seen + visible.sum(-1, keepdim=True) * width
        return seen.flatten(1, 2)


def dtype_of_products(
    dtype: torch.dtype, bias: Tensor | None, mask: Tensor | None, terms: Terms, *, has_sums: bool
) -> torch.dtype:
    """What a call's scores and weights are computed in, by the dtype of q.

    fp16 goes to fp32, since weights that are not yet normalized may leave its range; bf16 stays,
    unless a bias, a float mask, rows' sums, a steep h or a kink away from zero asks for more
    digits.
    """
    has_bias = bias is not None or terms.bias != 0.0
    has_factors = mask is not None and mask.dtype != torch.bool
    is_simple = not (has_bias or has_factors or has_sums)
    if dtype == torch.bfloat16 and is_simple and terms.activation in SMOOTH_IN_BF16:
        return dtype
    return torch.float64 if dtype == torch.float64 else torch.float32


def product_into(
    buffer: Tensor, shape: tuple[int, int, int], a: Tensor, b: Tensor, factor: float = 1.0
) -> Tensor:
    """factor * a @ b, written to the buffer's first elements."""
    return scaled_product(a, b, factor, buffer[: math.prod(shape)].view(shape))


def scaled_product(a: Tensor, b: Tensor, factor: float, out: Tensor) -> Tensor:
    """factor * a @ b, written to ``out``, whatever stood there.

    PyTorch's product with a factor inside leaves ``out`` as it was in bf16 when the factor is 0,
    refuses one that fp32 cannot hold, and may multiply a by a large one until it overflows.
    """
    if factor == 1.0:
        return torch.bmm(a, b, out=out)
    if SMALLEST_INSIDE <= abs(factor) <= LARGEST_INSIDE:
        return torch.baddbmm(out, a, b, beta=0, alpha=factor, out=out)
    return torch.bmm(a, b, out=out).mul_(factor)


def hide_(x: Tensor, visible: Tensor) -> None:
    """Set x to zero where ``visible`` is false, whatever stood there: Inf and NaN too."""
    x.view(_BITS[x.dtype]).mul_(visible.to(_BITS[x.dtype]))
