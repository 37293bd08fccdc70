"""``randaug`` for images on the device: a whole batch at once, level by level what Pillow gives.

The host draws the operations, so it knows which images get which: images are sorted by operation,
and each operation runs once on its own. What does not depend on pixels is read off the Pillow
operations when a run begins: pointwise ones are run on all 256 values, geometric ones on an image
whose values are the numbers of its pixels. The others follow Pillow's arithmetic.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.lab.data.decode import require_pillow
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.randaug import (
    FULL_LEVEL,
    GEOMETRIC,
    GRAY,
    OPERATIONS,
    POINTWISE,
    blend_factor,
    cutout_half,
)
from flashpoint.shapes import Int, UInt8

OPERATION_DRAWS = 3  # random numbers for one operation: which, then direction, or x and y
LUMA = (19595, 38470, 7471)  # of red, green and blue in gray, over 65536

_GROUPS = (  # in the order of ``changes`` below
    tuple(POINTWISE),
    tuple(GEOMETRIC),
    ("cutout",),
    ("autocontrast",),
    ("equalize",),
    ("color",),
    ("sharpness",),
)
_GROUP_OF = {name: number for number, names in enumerate(_GROUPS) for name in names}
_GROUP = np.array([_GROUP_OF[name] for name in OPERATIONS])
_ROW = np.array([_GROUPS[_GROUP_OF[name]].index(name) for name in OPERATIONS])
_GEOMETRIC_GROUP = 1


class Plan(NamedTuple):
    """Which images get which operations.

    Attributes:
        counts: images of each group, for every operation in a row.
        numbers: int64 [operations in a row, 4, b]: the images sorted by group; then, in this
            order, the row of each in its group's tables, and x and y of its cutout.
    """

    counts: list[list[int]]
    numbers: Integers


class ResidentRandaug:
    """Some operations in a row on every image of a batch; nothing waits for the device.

    Args:
        num_ops, magnitude: as ``randaug`` takes them.
        size: height and width of the images.
        device: where they are.
    """

    def __init__(self, num_ops: int, magnitude: float, size: int, device: torch.device) -> None:
        level = magnitude / FULL_LEVEL
        self.num_draws = num_ops * OPERATION_DRAWS
        self._size = size
        self._factor = blend_factor(level)

        def on_device(table: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(table).to(device)

        steps, half, sources = np.arange(size), cutout_half(level, size), moved_pixels(level, size)
        offsets = steps - steps[:, None]
        is_inner = (steps > 0) & (steps < size - 1)
        self._values = on_device(pointwise_levels(level))
        self._sources = on_device(np.maximum(sources, 0))
        self._is_outside = on_device(sources < 0)
        self._is_cut = on_device((offsets >= -half) & (offsets < half))
        self._is_inner = on_device(is_inner & is_inner[:, None])
        self._stretches = on_device(255.0 / np.maximum(np.arange(256), 1))
        self._one = on_device(np.ones((), dtype=np.int64))
        self._luma = on_device(np.array(LUMA).reshape(3, 1, 1))

    def plan(self, draws: npt.NDArray[np.float64]) -> Plan:
        """What happens to images, from uniform numbers [b, num_draws] in [0, 1)."""
        which, first, second = draws.reshape(len(draws), -1, OPERATION_DRAWS).transpose(2, 1, 0)
        choice = (which * len(OPERATIONS)).astype(np.int64)
        group, row = _GROUP[choice], _ROW[choice]
        row = np.where(group == _GEOMETRIC_GROUP, 2 * row + (first >= 0.5), row)
        x, y = ((at * self._size).astype(np.int64) for at in (first, second))
        order = np.argsort(group, axis=1, kind="stable")
        sorted_numbers = [np.take_along_axis(each, order, axis=1) for each in (row, x, y)]
        counts = [np.bincount(each, minlength=len(_GROUPS)).tolist() for each in group]
        return Plan(counts, np.stack((order, *sorted_numbers), axis=1))

    def __call__(
        self,
        images: UInt8[Tensor, "b C S S"],
        counts: list[list[int]],
        numbers: Int[Tensor, "ops 4 b"],
    ) -> UInt8[Tensor, "b C S S"]:
        """The images after the operations of a plan whose numbers are on the device."""
        changes = (
            self._pointwise,
            self._geometric,
            self._cutout,
            self._autocontrast,
            self._equalize,
            self._color,
            self._sharpness,
        )
        for sizes, each in zip(counts, numbers.unbind(), strict=True):
            order = each[0]
            groups = zip(images[order].split(sizes), each[1:].split(sizes, dim=1), strict=True)
            changed = [
                change(group, details)
                for change, (group, details) in zip(changes, groups, strict=True)
                if len(group)
            ]
            images = torch.empty_like(images).index_copy_(0, order, torch.cat(changed))
        return images

    def _pointwise(self, images: Tensor, numbers: Tensor) -> Tensor:
        return self._values[numbers[0, :, None, None, None], images.long()]

    def _geometric(self, images: Tensor, numbers: Tensor) -> Tensor:
        sources = self._sources[numbers[0]][:, None].expand(-1, images.shape[1], -1)
        moved = images.flatten(2).gather(2, sources)
        return moved.masked_fill_(self._is_outside[numbers[0]][:, None], GRAY).view_as(images)

    def _cutout(self, images: Tensor, numbers: Tensor) -> Tensor:
        columns, rows = self._is_cut[numbers[1:]]
        return images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], GRAY)

    def _autocontrast(self, images: Tensor, numbers: Tensor) -> Tensor:
        """From the darkest and the lightest value to 0 and 255, in fp64 as Python computes it."""
        low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
        stretch = self._stretches[(high - low).long()]
        stretched = (images * stretch - low * stretch).to(torch.uint8)
        return torch.where(high > low, stretched, images)

    def _equalize(self, images: Tensor, numbers: Tensor) -> Tensor:
        """A value becomes the number of steps of equal size in those below it."""
        values = images.flatten(2).long()  # [n, C, pixels]
        histogram = values.new_zeros((*values.shape[:2], 256))
        histogram.scatter_add_(2, values, self._one.expand_as(values))
        lightest = histogram.gather(2, values.amax(2, keepdim=True))
        step = (values.shape[2] - lightest) // 255
        below = histogram.cumsum(2) - histogram + step // 2
        table = (below // step.clamp(min=1)).clamp_(max=255)
        equalized = table.gather(2, values).to(torch.uint8).view_as(images)
        return torch.where(step[..., None] > 0, equalized, images)

    def _color(self, images: Tensor, numbers: Tensor) -> Tensor:
        if images.shape[1] == 1:
            return images
        gray = ((images * self._luma).sum(1, keepdim=True) + 0x8000) >> 16
        return self._blend(gray.float(), images.float())

    def _sharpness(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Smooth is the mean of 3 x 3 pixels, the middle five times; the edge stays as it is."""
        sharp = images.float()
        sums = F.avg_pool2d(sharp, 3, stride=1, padding=1, divisor_override=1).add_(sharp, alpha=4)
        smooth = sums.add_(6.5).div_(13.0, rounding_mode="floor")  # never near a whole number
        return self._blend(torch.where(self._is_inner, smooth, sharp), sharp)

    def _blend(self, degenerate: Tensor, images: Tensor) -> Tensor:
        """In fp32 and cut to a whole number, as Pillow blends."""
        blended = degenerate + self._factor * (images - degenerate)
        return blended.clamp_(0.0, 255.0).to(torch.uint8)


def pointwise_levels(level: float) -> npt.NDArray[np.uint8]:
    """What the 256 values become, [pointwise operations, 256]."""
    ramp = require_pillow().fromarray(np.arange(256, dtype=np.uint8)[None])
    return np.concatenate([np.asarray(change(ramp, level)) for change in POINTWISE.values()])


def moved_pixels(level: float, size: int) -> Integers:
    """Which pixel each one is taken from, [geometric operations * 2, size * size]; -1 for none.

    Even rows are for the level, odd ones for the other direction.
    """
    first = GRAY + 1  # so that no pixel's number is that of an empty place
    numbers = np.arange(first, first + size * size, dtype=np.int32).reshape(size, size)
    image = require_pillow().fromarray(numbers)
    moved = [
        np.asarray(change(image, signed))
        for change in GEOMETRIC.values()
        for signed in (level, -level)
    ]
    return np.maximum(np.stack(moved).reshape(len(moved), -1).astype(np.int64) - first, -1)
