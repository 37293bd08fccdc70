"""Training images of a streamed set: crop, flip and randaug on decoded images, in the workers.

The inception crop follows the sampler that BigVision uses: the ratio of the sides is uniform in
[3/4, 4/3], then the height is uniform among those that keep the area in [min_area, 1] and the crop
inside the image; so small areas are likelier than under a uniform area. Where no such crop exists,
as for very long images, the whole image is taken.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flashpoint.lab.data.config import AugmentationConfig, View
from flashpoint.lab.data.decode import require_pillow, to_pixels
from flashpoint.lab.data.order import Purpose, generator
from flashpoint.lab.data.randaug import randaug
from flashpoint.lab.data.source import Pixels
from flashpoint.lab.data.views import resize_box, take_view

if TYPE_CHECKING:
    from PIL.Image import Image

Floats = npt.NDArray[np.float64]

RATIOS = (3 / 4, 4 / 3)
NUM_DRAWS = 5  # random numbers for one image: four of its crop, one of its flip


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
        rng = generator(self.seed, Purpose.AUGMENTATION, position)
        draws = rng.random((1, NUM_DRAWS))
        image = self._crop(image, draws)
        if self.config.flip and flips(draws)[0]:
            image = image.transpose(require_pillow().Transpose.FLIP_LEFT_RIGHT)
        if self.config.randaug_ops:
            image = image.convert("L" if self.channels == 1 else "RGB")
            image = randaug(image, self.config.randaug_ops, self.config.randaug_magnitude, rng)
        return to_pixels(image, self.channels)

    def _crop(self, image: "Image", draws: Floats) -> "Image":
        size = self.image_size
        if self.config.crop == "inception":
            boxes = crop_boxes(draws[:, :4], *image.size, self.config.min_area)
            left, top, width, height = boxes[0].tolist()
            return resize_box(image, (left, top, left + width, top + height), size)
        image = take_view(image, self.view, size)
        if self.config.crop == "none":
            return image
        left, top = (int(shift) for shift in pad_shifts(draws, self.config.pad)[0])
        pad = self.config.pad
        return image.crop((left - pad, top - pad, left - pad + size, top - pad + size))
