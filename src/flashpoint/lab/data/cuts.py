"""What a worker hands over where the GPU resizes: the part of each image that its crop needs.

A worker decodes, draws the crop and the operations of randaug as ``transforms.py`` does, and cuts.
Parts of images differ in size, so those of a batch lie one behind the other, with their places.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.transforms import Augmenter, Box, Viewer, inside, resize_box
from flashpoint.shapes import Float, Int, UInt8

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_AREA = 4
"""A part of more pixels than so many outputs is resized by the worker: sending it takes long."""

CHANNELS = 3


class Cut(NamedTuple):
    """The part of one image.

    Attributes:
        pixels: [rows, columns, 3], as bytes.
        frame: columns, rows; left and top in the image; the image's width and height.
        box: what is seen of the image, in fractions of its pixels.
        is_mirrored: left to right.
        operations: int32 [operations in a row, 4], of randaug.
    """

    pixels: bytes
    frame: tuple[int, int, int, int, int, int]
    box: Box
    is_mirrored: bool
    operations: Integers


class Cuts(NamedTuple):
    """The parts of some images as tensors; a loader pins them and a GPU takes them.

    Attributes:
        pixels: uint8, one behind the other.
        places: int64 [b, 9], as ``gpu/resample.py`` reads them.
        boxes: fp32 [b, 4].
        operations: int32 [operations in a row, b, 4].
        num_rows, most_rows: of all parts, and of the highest.
    """

    pixels: UInt8[Tensor, " n"]
    places: Int[Tensor, "b 9"]
    boxes: Float[Tensor, "b 4"]
    operations: Int[Tensor, "ops b 4"]
    num_rows: int
    most_rows: int


@dataclass(frozen=True)
class Cutter:
    """Cuts the image at a position of the order."""

    transform: Augmenter | Viewer

    def __call__(self, image: "Image", position: int) -> Cut:
        """The part that the transform's crop needs, and what it would do next."""
        size = self.transform.image_size
        box, is_mirrored, operations = self.transform.draw(position, image.width, image.height)
        box = inside(box, image.width, image.height)
        left, top, right, bottom = _needed(box, image.width, image.height, size)
        if (right - left) * (bottom - top) > MAX_AREA * size * size:
            image, box = resize_box(image, box, size), (0.0, 0.0, float(size), float(size))
            left, top, right, bottom = 0, 0, size, size
        frame = (right - left, bottom - top, left, top, image.width, image.height)
        part = image.crop((left, top, right, bottom))
        pixels = (part if part.mode == "RGB" else part.convert("RGB")).tobytes()
        return Cut(pixels, frame, box, is_mirrored, operations)


def _needed(box: Box, width: int, height: int, size: int) -> tuple[int, int, int, int]:
    """Whole pixels that a resize of a box may read: the box and a triangle's width around."""
    left, top, right, bottom = box
    around_x, around_y = max((right - left) / size, 1.0), max((bottom - top) / size, 1.0)
    return (
        max(math.floor(left - around_x), 0),
        max(math.floor(top - around_y), 0),
        min(math.ceil(right + around_x), width),
        min(math.ceil(bottom + around_y), height),
    )


def pack(cuts: Sequence[Cut], size: int) -> Cuts:
    """Parts of images, to be resized to ``size``, as tensors."""
    frames = np.array([cut.frame for cut in cuts], dtype=np.int64).reshape(-1, 6)
    lengths = np.array([len(cut.pixels) for cut in cuts], dtype=np.int64)
    rows = frames[:, 1]
    mirrored = np.array([cut.is_mirrored for cut in cuts], dtype=np.int64)
    begins, between = np.cumsum(lengths) - lengths, (np.cumsum(rows) - rows) * size * CHANNELS
    places = np.column_stack((begins, frames, mirrored, between))
    pixels = torch.empty(int(lengths.sum()), dtype=torch.uint8)
    flat = pixels.numpy()
    for begin, cut in zip(begins.tolist(), cuts, strict=True):
        flat[begin : begin + len(cut.pixels)] = np.frombuffer(cut.pixels, dtype=np.uint8)
    operations = [cut.operations for cut in cuts]
    stacked = np.stack(operations, axis=1) if cuts else np.empty((0, 0, 4), dtype=np.int32)
    return Cuts(
        pixels=pixels,
        places=torch.from_numpy(places),
        boxes=torch.tensor([cut.box for cut in cuts], dtype=torch.float32).reshape(-1, 4),
        operations=torch.from_numpy(stacked.astype(np.int32)),
        num_rows=int(rows.sum()),
        most_rows=int(rows.max(initial=0)),
    )
