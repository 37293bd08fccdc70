"""One operation of randaug on every image of a batch, each its own: two launches for all.

B images, C = 3 channels, P pixels of a square image with side S. An operation is a row of four
whole numbers: its kind, the row of its table, and x and y of a cutout. Kinds whose result is a
function of the level alone read a table of 256 levels. Autocontrast and equalize first make theirs
from the image's histogram.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TABLE, AUTOCONTRAST, EQUALIZE, MOVE, CUTOUT, COLOR, SHARPNESS = range(7)
"""Kinds of operations."""

_PIXELS = 1024


@triton.jit
def table_kernel(
    images_ptr, operations_ptr,              # uint8 [B, C, P]; int32 [B, 4]
    tables_ptr,                              # uint8 [B, C, 256]
    num_pixels,
    PIXELS: tl.constexpr,
):
    """The table of one channel of an image that autocontrast or equalize is to change."""
    image, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kind = tl.load(operations_ptr + image * 4)
    if (kind == 1) | (kind == 2):
        plane = images_ptr + (image * 3 + channel) * num_pixels
        level = tl.arange(0, 256)
        counts = tl.zeros([256], tl.int32)
        for start in range(0, num_pixels, PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            values = tl.load(plane + pixel, mask=pixel < num_pixels, other=0).to(tl.int32)
            counts += tl.histogram(values, 256)
            missing = tl.maximum(start + PIXELS - num_pixels, 0)  # they counted as level 0
            counts -= tl.where(level == 0, missing, 0)
        lowest = tl.min(tl.where(counts > 0, level, 255))
        highest = tl.max(tl.where(counts > 0, level, 0))
        if kind == 1:
            stretch = 255.0 / tl.maximum(highest - lowest, 1).to(tl.float64)
            wide = level.to(tl.float64) * stretch - lowest.to(tl.float64) * stretch
            changed = tl.where(highest > lowest, wide.to(tl.int32), level)
        else:
            lightest = tl.sum(tl.where(level == highest, counts, 0))
            step = (num_pixels - lightest) // 255
            below = tl.cumsum(counts) - counts + step // 2
            changed = tl.where(step > 0, below // tl.maximum(step, 1), level)
        changed = tl.minimum(tl.maximum(changed, 0), 255)
        to = tables_ptr + (image * 3 + channel) * 256 + level
        tl.store(to, changed.to(tl.uint8))


@triton.jit
def blend(degenerate, levels, factor):
    """In fp32 and cut to a whole number, as Pillow blends."""
    plain = degenerate.to(tl.float32)
    blended = plain + factor * (levels.to(tl.float32) - plain)
    return tl.minimum(tl.maximum(blended, 0.0), 255.0).to(tl.uint8)


@triton.jit
def neighbor_sum(plane, pixel, size, is_inner):
    """3 x 3 levels, the middle one five times."""
    total = 4 * tl.load(plane + pixel, mask=is_inner, other=0).to(tl.int32)
    for down in tl.static_range(-1, 2):
        for right in tl.static_range(-1, 2):
            at = plane + pixel + down * size + right
            total += tl.load(at, mask=is_inner, other=0).to(tl.int32)
    return total


@triton.jit
def change_kernel(
    images_ptr, operations_ptr, changed_ptr,  # uint8 [B, C, P]; int32 [B, 4]; as images
    levels_ptr, tables_ptr, sources_ptr,      # uint8 [rows, 256], [B, C, 256]; int32 [rows, P]
    size, num_pixels, half, factor,           # of a cutout; share of the image in a blend
    PIXELS: tl.constexpr,
):
    """The operation of an image on some of its pixels, in all channels."""
    image = tl.program_id(0).to(tl.int64)
    operation = operations_ptr + image * 4
    kind, table = tl.load(operation), tl.load(operation + 1)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    is_in = pixel < num_pixels
    red = images_ptr + image * 3 * num_pixels
    green, blue = red + num_pixels, red + 2 * num_pixels
    to = changed_ptr + image * 3 * num_pixels + pixel
    x, y = pixel % size, pixel // size
    source, is_kept = pixel, is_in
    if kind == 3:
        source = tl.load(sources_ptr + table * num_pixels + pixel, mask=is_in, other=-1)
        is_kept = source >= 0
    if kind == 4:
        left, top = x - tl.load(operation + 2), y - tl.load(operation + 3)
        is_cut = (left >= -half) & (left < half) & (top >= -half) & (top < half)
        is_kept = is_in & (is_cut == 0)
    r = tl.load(red + source, mask=is_kept, other=128)  # gray where nothing is
    g = tl.load(green + source, mask=is_kept, other=128)
    b = tl.load(blue + source, mask=is_kept, other=128)
    if kind <= 2:
        table_r = tables_ptr + image * 768
        table_g, table_b = table_r + 256, table_r + 512
        if kind == 0:
            table_r = levels_ptr + table * 256
            table_g, table_b = table_r, table_r
        r = tl.load(table_r + r.to(tl.int32))
        g = tl.load(table_g + g.to(tl.int32))
        b = tl.load(table_b + b.to(tl.int32))
    if kind == 5:
        gray = r.to(tl.int32) * 19595 + g.to(tl.int32) * 38470 + b.to(tl.int32) * 7471
        gray = (gray + 32768) >> 16
        r, g, b = blend(gray, r, factor), blend(gray, g, factor), blend(gray, b, factor)
    if kind == 6:
        is_inner = is_in & (x > 0) & (x < size - 1) & (y > 0) & (y < size - 1)
        smooth_r = (2 * neighbor_sum(red, pixel, size, is_inner) + 13) // 26
        smooth_g = (2 * neighbor_sum(green, pixel, size, is_inner) + 13) // 26
        smooth_b = (2 * neighbor_sum(blue, pixel, size, is_inner) + 13) // 26
        r = blend(tl.where(is_inner, smooth_r, r.to(tl.int32)), r, factor)
        g = blend(tl.where(is_inner, smooth_g, g.to(tl.int32)), g, factor)
        b = blend(tl.where(is_inner, smooth_b, b.to(tl.int32)), b, factor)
    tl.store(to, r, mask=is_in)
    tl.store(to + num_pixels, g, mask=is_in)
    tl.store(to + 2 * num_pixels, b, mask=is_in)


def launch_change(
    images: Tensor, operations: Tensor, levels: Tensor, sources: Tensor, half: int, factor: float
) -> Tensor:
    """The images after one operation each; nothing waits for the device.

    Args:
        images: uint8 [B, 3, S, S], contiguous.
        operations: int32 [B, 4].
        levels: uint8 [rows, 256], what ``TABLE`` makes of levels.
        sources: int32 [rows, S * S], which pixel ``MOVE`` takes; -1 for none.
        half: of a cutout's side.
        factor: share of the image itself in ``COLOR`` and ``SHARPNESS``.
    """
    num_images, size = len(images), images.shape[-1]
    tables = torch.empty((num_images, 3, 256), dtype=torch.uint8, device=images.device)
    changed = torch.empty_like(images)
    options = {"PIXELS": _PIXELS, "enable_fp_fusion": False}
    table_kernel[num_images, 3](images, operations, tables, size * size, **options)
    change_kernel[num_images, triton.cdiv(size * size, _PIXELS)](
        images, operations, changed, levels, tables, sources,
        size, size * size, half, factor, **options
    )
    return changed
