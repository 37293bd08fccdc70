"""A validation image at the size of the model: which part of it is seen.

Bilinear with antialiasing. Only the part that is kept is computed, so that an image of any shape
costs the same.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashpoint.lab.data.config import EVAL_ZOOM, DataConfig, View
from flashpoint.lab.data.decode import require_pillow, to_pixels
from flashpoint.lab.data.source import Pixels, Source

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]


def view_of(source: Source, config: DataConfig) -> View:
    """What "auto" means for a source."""
    if config.evaluation_view != "auto":
        return config.evaluation_view
    return "whole" if source.is_small else "crop"


def view_box(view: View, width: int, height: int, size: int) -> Box:
    """Left, top, right and bottom of the part that is seen, in pixels of the image.

    "crop" brings the short side to round(256/224 * size) and keeps the centre, "squash" both
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
    left, top, right, bottom = box
    inside = (max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height))
    bilinear = require_pillow().Resampling.BILINEAR
    return image.resize((size, size), bilinear, box=inside)


@dataclass(frozen=True)
class Viewer:
    """Turns a decoded image into pixels for validation."""

    view: View
    image_size: int
    channels: int

    def __call__(self, image: "Image", position: int) -> Pixels:
        """uint8 [C, S, S]."""
        return to_pixels(take_view(image, self.view, self.image_size), self.channels)
