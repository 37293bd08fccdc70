"""Parts of images of many sizes, each resized to one square: Pillow's bilinear resize.

Pillow resizes in two passes, along rows and then along columns. Each rounds to whole levels. A
pass weighs pixels by a triangle as wide as the step between two outputs (one pixel at least), in
whole numbers of 2^-22. The same arithmetic in the same order gives the same levels here.

B images, C = 3 channels, S height and width of the output. The part of each image that is resized
is a block of pixels somewhere in memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_PLACES = 11
"""Numbers for each image: where its block begins; the block's rows; the column and the row of the
image that the block begins with; the image's width and height; 1 to mirror it; where it begins
between the passes; the steps from a row, a column and a channel of the block to the next."""

_ROWS, _COLUMNS = 8, 128


@triton.jit
def first_tap(low, high, outputs, size, limit):
    """First pixel, end of the pixels, center and width of the triangle of every output.

    ``low`` and ``high`` are fp32, as Pillow has them, and all else is fp64.
    """
    scale = (high - low).to(tl.float64) / size
    width = tl.maximum(scale, 1.0)
    center = low.to(tl.float64) + (outputs.to(tl.float64) + 0.5) * scale
    first = tl.maximum((center - width + 0.5).to(tl.int32), 0)
    last = tl.minimum((center + width + 0.5).to(tl.int32), limit)
    return first, last, center, width


@triton.jit
def tap_weight(pixel, last, center, width):
    """The triangle's height at a pixel, fp64; 0 behind the last one."""
    away = tl.abs((pixel.to(tl.float64) - center + 0.5) * (1.0 / width))
    return tl.where((pixel < last) & (away < 1.0), 1.0 - away, 0.0)


@triton.jit
def weight_sum(first, last, center, width, num_taps):
    """The sum of an output's weights, in Pillow's order."""
    total = tl.zeros_like(center)
    for tap in range(0, num_taps):
        total += tap_weight(first + tap, last, center, width)
    return total


@triton.jit
def whole_weight(pixel, last, center, width, total):
    """A weight over the sum, in steps of 2^-22."""
    share = tap_weight(pixel, last, center, width) / total
    return (0.5 + share * 4194304.0).to(tl.int32)


@triton.jit
def row_kernel(
    block_ptr, places_ptr, boxes_ptr,        # uint8; int64 [B, NUM_PLACES]; fp32 [B, 4]
    middle_ptr,                              # uint8, [C, rows, S] of each image
    size,                                    # S
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr,
):
    """The first pass: every row of a block becomes S long, and channels come apart."""
    image = tl.program_id(0).to(tl.int64)
    place = places_ptr + image * PLACES
    num_rows = tl.load(place + 1).to(tl.int32)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(1) * ROWS < num_rows:
        block = block_ptr + tl.load(place)
        skipped = tl.load(place + 2).to(tl.int32)
        limit = tl.load(place + 4).to(tl.int32)
        row_step, step = tl.load(place + 8), tl.load(place + 9)
        channel_step = tl.load(place + 10)
        low, high = tl.load(boxes_ptr + image * 4), tl.load(boxes_ptr + image * 4 + 2)
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        first, last, center, width = first_tap(low, high, column, size, limit)
        num_taps = 2 * tl.ceil(width).to(tl.int32) + 1
        total = weight_sum(first, last, center, width, num_taps)
        is_in = (row < num_rows)[:, None] & (column < size)[None, :]
        half = tl.full([ROWS, COLUMNS], 2097152, tl.int32)
        red, green, blue = half, half, half
        for tap in range(0, num_taps):
            weight = whole_weight(first + tap, last, center, width, total)[None, :]
            seen = is_in & (weight > 0)
            at = block + row[:, None] * row_step + (first + tap - skipped)[None, :] * step
            red += tl.load(at, mask=seen, other=0).to(tl.int32) * weight
            green += tl.load(at + channel_step, mask=seen, other=0).to(tl.int32) * weight
            blue += tl.load(at + 2 * channel_step, mask=seen, other=0).to(tl.int32) * weight
        to = middle_ptr + tl.load(place + 7) + row[:, None] * size + column[None, :]
        plane = num_rows.to(tl.int64) * size
        tl.store(to, (red >> 22).to(tl.uint8), mask=is_in)
        tl.store(to + plane, (green >> 22).to(tl.uint8), mask=is_in)
        tl.store(to + 2 * plane, (blue >> 22).to(tl.uint8), mask=is_in)


@triton.jit
def column_kernel(
    middle_ptr, places_ptr, boxes_ptr,
    images_ptr,                              # uint8 [B, C, S, S]
    size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr,
):
    """The second pass, which also mirrors."""
    image, channel = (tl.program_id(0) // 3).to(tl.int64), tl.program_id(0) % 3
    place = places_ptr + image * PLACES
    num_rows = tl.load(place + 1)
    skipped = tl.load(place + 3).to(tl.int32)
    limit = tl.load(place + 5).to(tl.int32)
    is_mirrored = tl.load(place + 6) != 0
    low, high = tl.load(boxes_ptr + image * 4 + 1), tl.load(boxes_ptr + image * 4 + 3)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    first, last, center, width = first_tap(low, high, row, size, limit)
    num_taps = 2 * tl.ceil(width).to(tl.int32) + 1
    total = weight_sum(first, last, center, width, num_taps)
    is_in = (row < size)[:, None] & (column < size)[None, :]
    plane = middle_ptr + tl.load(place + 7) + channel * num_rows * size
    level = tl.full([ROWS, COLUMNS], 2097152, tl.int32)
    for tap in range(0, num_taps):
        weight = whole_weight(first + tap, last, center, width, total)[:, None]
        at = plane + (first + tap - skipped)[:, None].to(tl.int64) * size + column[None, :]
        level += tl.load(at, mask=is_in & (weight > 0), other=0).to(tl.int32) * weight
    shown = tl.where(is_mirrored, size - 1 - column, column)
    to = images_ptr + ((image * 3 + channel) * size + row[:, None]) * size + shown[None, :]
    tl.store(to, (level >> 22).to(tl.uint8), mask=is_in)


def launch_resample(
    block: Tensor, places: Tensor, boxes: Tensor, images: Tensor, num_rows: int, most_rows: int
) -> None:
    """Fill ``images`` [B, 3, S, S] from blocks of pixels; nothing waits for the device.

    Args:
        block: uint8; blocks are counted from its beginning, and need not lie in it.
        places: int64 [B, NUM_PLACES].
        boxes: fp32 [B, 4], left, top, right and bottom in pixels of the whole image.
        images: uint8, contiguous.
        num_rows, most_rows: of all blocks, and of the highest.
    """
    size = images.shape[-1]
    middle = torch.empty(3 * size * num_rows, dtype=torch.uint8, device=block.device)
    sides = {"ROWS": _ROWS, "COLUMNS": _COLUMNS, "PLACES": NUM_PLACES, "enable_fp_fusion": False}
    columns = triton.cdiv(size, _COLUMNS)
    row_kernel[len(images), triton.cdiv(most_rows, _ROWS), columns](
        block, places, boxes, middle, size, **sides
    )
    column_kernel[3 * len(images), triton.cdiv(size, _ROWS), columns](
        middle, places, boxes, images, size, **sides
    )
