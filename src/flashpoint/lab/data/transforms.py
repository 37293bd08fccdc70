"""What happens to an image between decoding and the model.

- Validation: which part of it is seen, brought to the model's size. Bilinear with antialiasing.
  Only the part that is kept is computed, so that an image of any shape costs the same.
- Training: crop, flip and randaug, in the workers for a streamed set.
- Training, a whole batch: mixup, every image and target blended with the neighbor's.

The inception crop follows the sampler that BigVision uses: the ratio of the sides is uniform in
[3/4, 4/3], then the height is uniform among those that keep the area in [min_area, 1] and the crop
inside the image; so small areas are likelier than under a uniform area. Where no such crop exists,
as for very long images, the whole image is taken.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor, cat, float32

from flashpoint.lab.data.config import EVAL_ZOOM, AugmentationConfig, DataConfig, View
from flashpoint.lab.data.decode import require_pillow, to_pixels
from flashpoint.lab.data.drawn_operations import NO_OPERATIONS, draw_operations
from flashpoint.lab.data.image_source import Integers, Pixels, Source
from flashpoint.lab.data.order import Purpose, generator
from flashpoint.lab.data.randaug import randaug
from flashpoint.ops.implementations import HAS_TRITON
from flashpoint.shapes import Float

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]
Floats = npt.NDArray[np.float64]

RATIOS = (3 / 4, 4 / 3)
NUM_DRAWS = 5  # random numbers for one image: four of its crop, one of its flip


def view_of(source: Source, config: DataConfig) -> View:
    """What "auto" means for a source."""
    if config.evaluation_view != "auto":
        return config.evaluation_view
    return "whole" if source.is_small else "crop"


def view_box(view: View, width: int, height: int, size: int) -> Box:
    """Left, top, right and bottom of the part that is seen, in pixels of the image.

    "crop" brings the short side to round(256/224 * size) and keeps the center, "squash" both
    sides, "whole" keeps all. Sides are rounded to whole pixels as if the resized image were made.

    Example:
        >>> view_box("crop", 512, 256, 224)
        (144.0, 16.0, 368.0, 240.0)
    """
    if view == "whole":
        return 0.0, 0.0, float(width), float(height)
    short = round(size * EVAL_ZOOM)
    if view == "squash":
        resized = (short, short)
    else:
        factor = short / min(width, height)
        resized = (round(width * factor), round(height * factor))
    starts = [(side - size) // 2 for side in resized]
    steps = (width / resized[0], height / resized[1])
    left, top = (start * step for start, step in zip(starts, steps, strict=True))
    return left, top, left + size * steps[0], top + size * steps[1]


def take_view(image: "Image", view: View, size: int) -> "Image":
    """The part that is seen, size x size."""
    box = view_box(view, image.width, image.height, size)
    if view == "whole" and image.size == (size, size):
        return image
    return resize_box(image, box, size)


def resize_box(image: "Image", box: Box, size: int) -> "Image":
    """A part of an image, given in fractions of pixels, resized to size x size."""
    bilinear = require_pillow().Resampling.BILINEAR
    return image.resize((size, size), bilinear, box=inside(box, image.width, image.height))


def inside(box: Box, width: int, height: int) -> Box:
    """The same without what rounding put outside the image."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)


class Draw(NamedTuple):
    """What happens to an image of some size, before it is seen.

    Attributes:
        box: the part that is resized.
        is_mirrored: left to right.
        operations: of randaug, as ``draw_operations`` gives them.
    """

    box: Box
    is_mirrored: bool = False
    operations: Integers = NO_OPERATIONS


@dataclass(frozen=True)
class Viewer:
    """Turns a decoded image into pixels for validation."""

    view: View
    image_size: int
    channels: int

    def __call__(self, image: "Image", position: int) -> Pixels:
        """uint8 [C, S, S]."""
        return to_pixels(take_view(image, self.view, self.image_size), self.channels)

    def draw(self, position: int, width: int, height: int) -> Draw:
        """The same without the image; nothing is drawn by chance."""
        return Draw(view_box(self.view, width, height, self.image_size))


def crop_boxes(draws: Floats, width: int, height: int, min_area: float) -> Floats:
    """Inception crops [N, 4] as left, top, width, height, from uniform numbers [N, 4] in [0, 1).

    Example:
        >>> crop_boxes(np.full((1, 4), 0.5), 100, 100, 1.0).tolist()
        [[0.0, 0.0, 100.0, 100.0]]
    """
    low = max(RATIOS[0], min_area * width / height)
    high = min(RATIOS[1], width / (height * min_area))
    if low > high:
        return np.tile([0.0, 0.0, float(width), float(height)], (len(draws), 1))
    ratio = low + (high - low) * draws[:, 0]
    most = np.minimum(height, width / ratio)
    least = np.minimum(np.sqrt(min_area * width * height / ratio), most)
    h = least + (most - least) * draws[:, 1]
    w = np.minimum(h * ratio, width)
    return np.stack(((width - w) * draws[:, 2], (height - h) * draws[:, 3], w, h), axis=1)


def flips(draws: Floats) -> npt.NDArray[np.bool_]:
    """Which images are mirrored, from the fifth of their random numbers."""
    return draws[:, 4] < 0.5


def pad_shifts(draws: Floats, pad: int) -> Floats:
    """Where the crops of padded images begin [N, 2] (left, top): whole numbers in [0, 2 pad]."""
    return np.floor(draws[:, :2] * (2 * pad + 1))


@dataclass(frozen=True)
class Augmenter:
    """Turns the image at a position of the order into pixels; the same ones in every process."""

    config: AugmentationConfig
    view: View
    image_size: int
    channels: int
    seed: int

    def __call__(self, image: "Image", position: int) -> Pixels:
        """uint8 [C, S, S]."""
        rng, draws = self._draws(position)
        image = self._crop(image, draws)
        if self.config.flip and flips(draws)[0]:
            image = image.transpose(require_pillow().Transpose.FLIP_LEFT_RIGHT)
        if self.config.randaug_ops:
            image = image.convert("L" if self.channels == 1 else "RGB")
            image = randaug(image, self.config.randaug_ops, self.config.randaug_magnitude, rng)
        return to_pixels(image, self.channels)

    def draw(self, position: int, width: int, height: int) -> Draw:
        """The same without the image, for crops that are a resize."""
        rng, draws = self._draws(position)
        if self.config.crop == "inception":
            box = self._inception_box(draws, width, height)
        else:
            box = view_box(self.view, width, height, self.image_size)
        operations = draw_operations(rng, self.config.randaug_ops, self.image_size)
        return Draw(box, self.config.flip and bool(flips(draws)[0]), operations)

    def _draws(self, position: int) -> tuple[np.random.Generator, Floats]:
        """Random numbers of crop and flip, and where further ones come from."""
        rng = generator(self.seed, Purpose.AUGMENTATION, position)
        return rng, rng.random((1, NUM_DRAWS))

    def _inception_box(self, draws: Floats, width: int, height: int) -> Box:
        boxes = crop_boxes(draws[:, :4], width, height, self.config.min_area)
        left, top, w, h = boxes[0].tolist()
        return left, top, left + w, top + h

    def _crop(self, image: "Image", draws: Floats) -> "Image":
        size = self.image_size
        if self.config.crop == "inception":
            return resize_box(image, self._inception_box(draws, *image.size), size)
        image = take_view(image, self.view, size)
        if self.config.crop == "none":
            return image
        left, top = (int(shift) for shift in pad_shifts(draws, self.config.pad)[0])
        pad = self.config.pad
        return image.crop((left - pad, top - pad, left - pad + size, top - pad + size))


def mixup_share(p: float, seed: int, step: int) -> float:
    """The share l of the image itself: max(l, 1 - l) with l ~ Beta(p, p); 1 if p is 0.

    Example:
        >>> mixup_share(0.2, seed=0, step=7) == mixup_share(0.2, seed=0, step=7) >= 0.5
        True
    """
    if p == 0.0:
        return 1.0
    share = float(generator(seed, Purpose.MIXUP, step).beta(p, p))
    return max(share, 1.0 - share)


def mixup(
    images: Float[Tensor, "B C S S"],
    targets: Float[Tensor, "B K"],
    p: float,
    seed: int,
    step: int,
    *,
    neighbor: tuple[Float[Tensor, "1 C S S"], Float[Tensor, "1 K"]] | None = None,
) -> tuple[Float[Tensor, "B C S S"], Float[Tensor, "B K"]]:
    """Both blended: ``l * x + (1 - l) * x rolled by one``, where l follows from (seed, step).

    Args:
        images, targets: of one rank, on any device; targets one-hot.
        p: of Beta(p, p); 0 gives back what came in.
        seed, step: of the run and the batch.
        neighbor: image and target that stand before the first in the global batch, from
            ``Batch.neighbor``. None: the last of this batch, which is right on one rank.

    Example:
        >>> import torch
        >>> images, targets = torch.zeros(2, 1, 1, 1), torch.eye(2)
        >>> mixup(images, targets, 0.5, seed=0, step=0)[1].sum(1)
        tensor([1., 1.])
    """
    share = mixup_share(p, seed, step)
    if share == 1.0:
        return images, targets
    first = (images[-1:], targets[-1:]) if neighbor is None else neighbor
    return _mix(images, first[0], share), _mix(targets, first[1], share)


def _mix(own: Tensor, before: Tensor, share: float) -> Tensor:
    """The same bits either way; a kernel passes over images once."""
    if own.is_cuda and HAS_TRITON and own.dtype == float32:
        from flashpoint.lab.data.gpu.mix import launch_mix

        return launch_mix(own, before, share)
    return share * own + (1.0 - share) * cat((before, own[:-1]))
