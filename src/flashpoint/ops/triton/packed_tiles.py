"""Rows of a head in tensors [B, L, parts, H, D]: q, k and v are the parts 0, 1 and 2 of qkv."""

import triton
import triton.language as tl


@triton.jit
def load_part(
    x, strides, b, h, part, row, L,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Rows [row, row + ROWS) of a head, zeros from L on and beyond D: [ROWS, BLOCK_D].

    strides: of B, L, parts, H and D.
    """
    r, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    ok = (r < L - row)[:, None]
    if D != BLOCK_D:
        ok = ok & (d < D)[None, :]
    at = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(row, tl.int64) * strides[1]
    at += tl.cast(part, tl.int64) * strides[2] + tl.cast(h, tl.int64) * strides[3]
    at = at + r.to(tl.int64)[:, None] * strides[1] + d.to(tl.int64)[None, :] * strides[4]
    return tl.load(at, mask=ok, other=0.0)


@triton.jit
def store_part(
    x, tile, b, h, part: tl.constexpr, row, L, H,
    D: tl.constexpr, PARTS: tl.constexpr,
):
    """Write the rows before L of a tile to a dense [B, L, PARTS, H, D]."""
    r, d = tl.arange(0, tile.shape[0]), tl.arange(0, tile.shape[1])
    ok = (r < L - row)[:, None]
    if D != tile.shape[1]:
        ok = ok & (d < D)[None, :]
    pitch = PARTS * H * D
    at = x + (tl.cast(b, tl.int64) * L + row) * pitch + (part * H + h) * D
    at = at + r.to(tl.int64)[:, None] * pitch + d[None, :]
    tl.store(at, tile.to(x.dtype.element_ty), mask=ok)
