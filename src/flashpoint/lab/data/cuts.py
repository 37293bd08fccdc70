"""What a worker hands over where the GPU resizes: the part of each image that its crop needs.

A worker decodes, draws the crop and the operations of randaug as ``transforms.py`` does, and cuts.
Parts of images differ in size, so those of a batch lie one behind the other, with their places.
JPEG files that the GPU is to decode are handed over as they are, behind the parts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flashpoint.lab.data.image_source import Integers, Source
from flashpoint.lab.data.jpeg_header import baseline_size
from flashpoint.lab.data.transforms import Augmenter, Box, Draw, Viewer, inside, resize_box
from flashpoint.shapes import Float, Int, UInt8

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_AREA = 4
"""A part of more pixels than so many outputs is resized by the worker: sending it takes long."""

MAX_PIXELS = 1 << 19
"""Of an image that the GPU decodes: it decodes the whole of it."""

CHANNELS = 3
BETWEEN = 7
"""Which of an image's places is where it begins between the passes."""
_FOLD = 5


class Cut(NamedTuple):
    """The part of one image.

    Attributes:
        content: pixels [rows, columns, 3], or a JPEG file.
        is_file: which of them.
        frame: columns, rows; left and top in the image; the image's width and height.
        box: what is seen of the image, in fractions of its pixels.
        is_mirrored: left to right.
        operations: int32 [operations in a row, 4], of randaug.
    """

    content: bytes
    is_file: bool
    frame: tuple[int, int, int, int, int, int]
    box: Box
    is_mirrored: bool
    operations: Integers


class Cuts(NamedTuple):
    """The parts of some images as tensors; a loader pins them and a GPU takes them.

    Attributes:
        content: uint8, pixels one behind the other, then files.
        num_bytes: of the pixels.
        files: int64 [f, 3]: the place of each file among the images, where it begins, its length.
        places: int64 [b, NUM_PLACES], as ``gpu/resample.py`` reads them; of an image in a file the
            first is counted from where its pixels will be.
        boxes: fp32 [b, 4].
        operations: int32 [operations in a row, b, 4].
        num_rows, most_rows: of all parts, and of the highest.
    """

    content: UInt8[Tensor, " n"]
    num_bytes: int
    files: Int[Tensor, "f 3"]
    places: Int[Tensor, "b p"]
    boxes: Float[Tensor, "b 4"]
    operations: Int[Tensor, "ops b 4"]
    num_rows: int
    most_rows: int


@dataclass(frozen=True)
class Cutter:
    """Takes the sample for a position of the order.

    Attributes:
        transform: what happens to the image.
        files: of five positions in a row, for so many the GPU decodes what it can.
    """

    transform: Augmenter | Viewer
    files: int = 0

    def __call__(self, source: Source, index: int, position: int) -> tuple[Cut, int]:
        """The part of an image, or its file; and the label."""
        if position % _FOLD < self.files and (content := source.read_file(index)) is not None:
            size = baseline_size(content)
            if size is not None and size[0] * size[1] <= MAX_PIXELS:
                return self._file(content, *size, position), int(source.labels[index])
        image, label = source.read(index)
        return self.cut(image, position), label

    def cut(self, image: "Image", position: int) -> Cut:
        """The part that the transform's crop needs, and what it would do next."""
        size = self.transform.image_size
        draw = self._draw(position, image.width, image.height)
        left, top, right, bottom = _needed(draw.box, image.width, image.height, size)
        if (right - left) * (bottom - top) > MAX_AREA * size * size:
            image = resize_box(image, draw.box, size)
            draw = draw._replace(box=(0.0, 0.0, float(size), float(size)))
            left, top, right, bottom = 0, 0, size, size
        frame = (right - left, bottom - top, left, top, image.width, image.height)
        part = image.crop((left, top, right, bottom))
        pixels = (part if part.mode == "RGB" else part.convert("RGB")).tobytes()
        return Cut(pixels, False, frame, *draw)

    def _file(self, content: bytes, width: int, height: int, position: int) -> Cut:
        draw = self._draw(position, width, height)
        left, top, right, bottom = _needed(draw.box, width, height, self.transform.image_size)
        return Cut(content, True, (right - left, bottom - top, left, top, width, height), *draw)

    def _draw(self, position: int, width: int, height: int) -> Draw:
        draw = self.transform.draw(position, width, height)
        return draw._replace(box=inside(draw.box, width, height))


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
    lengths = np.array([len(cut.content) for cut in cuts], dtype=np.int64)
    is_file = np.array([cut.is_file for cut in cuts], dtype=np.bool_)
    begins = np.zeros_like(lengths)
    order = np.argsort(is_file, kind="stable")  # files are last
    begins[order] = np.cumsum(lengths[order]) - lengths[order]
    content = _shared(int(lengths.sum()))
    flat = content.numpy()
    for begin, cut in zip(begins.tolist(), cuts, strict=True):
        flat[begin : begin + len(cut.content)] = np.frombuffer(cut.content, dtype=np.uint8)
    places = _places(cuts, np.where(is_file, 0, begins), size)
    operations = [cut.operations for cut in cuts]
    stacked = np.stack(operations, axis=1) if cuts else np.empty((0, 0, 4), dtype=np.int32)
    files = np.stack((np.arange(len(cuts)), begins, lengths), axis=1)[is_file]
    return Cuts(
        content=content,
        num_bytes=int(lengths[~is_file].sum()),
        files=torch.from_numpy(files),
        places=torch.from_numpy(places),
        boxes=torch.tensor([cut.box for cut in cuts], dtype=torch.float32).reshape(-1, 4),
        operations=torch.from_numpy(stacked.astype(np.int32)),
        num_rows=int(places[:, 1].sum()),
        most_rows=int(places[:, 1].max(initial=0)),
    )


class Joined(NamedTuple):
    """Parts of images that several workers handed over, to be made at once.

    Attributes:
        pixels: uint8, each worker's; one behind the other where they are going.
        files: those of images in files, with their places among the images.
        places, boxes, operations, num_rows, most_rows: as ``Cuts`` has them.
    """

    pixels: list[UInt8[Tensor, " n"]]
    files: list[tuple[int, UInt8[Tensor, " n"]]]
    places: Int[Tensor, "b p"]
    boxes: Float[Tensor, "b 4"]
    operations: Int[Tensor, "ops b 4"]
    num_rows: int
    most_rows: int


def join(parts: Sequence[Cuts], size: int) -> Joined:
    """What several workers handed over, one at least, as one; pixels and files are not copied."""
    files: list[tuple[int, Tensor]] = []
    places: list[Tensor] = []
    num_images = num_bytes = num_rows = 0
    for part in parts:
        here = part.places.clone()
        here[:, 0] += num_bytes
        here[part.files[:, 0], 0] -= num_bytes
        here[:, BETWEEN] += num_rows * size * CHANNELS
        places.append(here)
        for place, begin, length in part.files.tolist():
            files.append((num_images + place, part.content[begin : begin + length]))
        num_images += len(here)
        num_bytes, num_rows = num_bytes + part.num_bytes, num_rows + part.num_rows
    return Joined(
        pixels=[part.content[: part.num_bytes] for part in parts],
        files=files,
        places=torch.cat(places),
        boxes=torch.cat([part.boxes for part in parts]),
        operations=torch.cat([part.operations for part in parts], dim=1),
        num_rows=num_rows,
        most_rows=max(part.most_rows for part in parts),
    )


def _places(cuts: Sequence[Cut], begins: Integers, size: int) -> Integers:
    """Rows as ``gpu/resample.py`` reads them."""
    frames = np.array([cut.frame for cut in cuts], dtype=np.int64).reshape(-1, 6)
    columns, rows, left, top, width, height = frames.T
    is_file = np.array([cut.is_file for cut in cuts], dtype=np.bool_)
    mirrored = np.array([cut.is_mirrored for cut in cuts], dtype=np.int64)
    one = np.ones_like(rows)
    strides = (  # of rows, of columns, of channels: files become [3, height, width]
        np.where(is_file, width, CHANNELS * columns),
        np.where(is_file, one, CHANNELS),
        np.where(is_file, width * height, one),
    )
    begins = begins + np.where(is_file, top * width + left, 0)
    between = (np.cumsum(rows) - rows) * size * CHANNELS
    return np.stack((begins, rows, left, top, width, height, mirrored, between, *strides), axis=1)


def _shared(num_bytes: int) -> Tensor:
    """Memory for bytes; a worker's is shared with the trainer, so that nothing is copied again."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(num_bytes, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(num_bytes)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (num_bytes,), (1,))
