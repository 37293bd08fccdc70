"""RandAugment as BigVision runs it: a few operations in a row, drawn from a list, one strength.

Each of the 16 operations below is as likely as any other and is always applied; those with a
direction take either one by chance. With level = magnitude / 10, at 224 pixels:

| operation | strength |
|---|---|
| autocontrast, equalize, invert | none |
| rotate | +-30 degrees x level |
| posterize | keeps 4 x level bits (1 at least) |
| solarize | inverts values from 256 x level |
| solarize_add | adds 110 x level to values below 128 |
| color, contrast, brightness, sharpness | factor 0.1 + 1.8 x level |
| shear_x, shear_y | +-0.3 x level |
| translate_x, translate_y | +-100 pixels x level |
| cutout | a square of 80 pixels x level |

Magnitude 0 is not nothing: factors of 0.1, one bit, inverted images. Lengths in pixels scale with
the image, where BigVision's stay as at 224. Empty places become gray (128), pixels are the nearest
ones. Contrast blends with BigVision's gray: not the image's mean but 196, from 224 * 224 / 256.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flashpoint.lab.data.decode import require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Operation = Callable[["Image", float, np.random.Generator], "Image"]
Change = Callable[["Image", float], "Image"]
Matrix = tuple[float, float, float, float, float, float]

FULL_LEVEL = 10.0
REFERENCE_SIZE = 224
GRAY = 128
CONTRAST_GRAY = 196


def randaug(image: "Image", num_ops: int, magnitude: float, rng: np.random.Generator) -> "Image":
    """The image after ``num_ops`` operations; an image of mode L or RGB stays one."""
    names = list(OPERATIONS)
    for choice in rng.integers(len(names), size=num_ops):
        image = OPERATIONS[names[choice]](image, magnitude / FULL_LEVEL, rng)
    return image


def blend_factor(level: float) -> float:
    """Share of the image itself in color, contrast, brightness and sharpness."""
    return 0.1 + 1.8 * level


def cutout_half(level: float, size: int) -> int:
    """Half the side of cutout's square, in pixels."""
    return int(40 * level * size / REFERENCE_SIZE)


def _fill(image: "Image") -> int | tuple[int, ...]:
    """Gray in the image's mode."""
    bands = len(image.getbands())
    return GRAY if bands == 1 else (GRAY,) * bands


def _affine(image: "Image", matrix: Matrix) -> "Image":
    """The pixel at (x, y) comes from (a x + b y + c, d x + e y + f)."""
    pillow = require_pillow()
    return image.transform(
        image.size,
        pillow.Transform.AFFINE,
        matrix,
        resample=pillow.Resampling.NEAREST,
        fillcolor=_fill(image),
    )


def _image_ops(kind: str, *arguments: Callable[[float], int]) -> Change:
    """A function of Pillow's ImageOps, with arguments that follow from the level."""

    def change(image: "Image", level: float) -> "Image":
        from PIL import ImageOps

        return getattr(ImageOps, kind)(image, *(argument(level) for argument in arguments))

    return change


def _solarize_add(image: "Image", level: float) -> "Image":
    addition = int(110 * level)
    table = [min(value + addition, 255) if value < 128 else value for value in range(256)]
    return image.point(table * len(image.getbands()))


def _enhance(kind: str) -> Change:
    """Blend with a degenerate image: no color, black, or smooth."""

    def change(image: "Image", level: float) -> "Image":
        from PIL import ImageEnhance

        return getattr(ImageEnhance, kind)(image).enhance(blend_factor(level))

    return change


def _contrast(image: "Image", level: float) -> "Image":
    pillow = require_pillow()
    flat = pillow.new("L", image.size, CONTRAST_GRAY).convert(image.mode)
    return pillow.blend(flat, image, blend_factor(level))


def _translate_x(image: "Image", level: float) -> "Image":
    pixels = 100.0 * level * image.width / REFERENCE_SIZE
    return _affine(image, (1.0, 0.0, pixels, 0.0, 1.0, 0.0))


def _translate_y(image: "Image", level: float) -> "Image":
    pixels = 100.0 * level * image.height / REFERENCE_SIZE
    return _affine(image, (1.0, 0.0, 0.0, 0.0, 1.0, pixels))


def _cutout(image: "Image", level: float, rng: np.random.Generator) -> "Image":
    half = cutout_half(level, image.width)
    x, y = int(rng.integers(image.width)), int(rng.integers(image.height))
    result = image.copy()
    if half:
        result.paste(_fill(image), (x - half, y - half, x + half, y + half))
    return result


def _always(change: Change) -> Operation:
    return lambda image, level, rng: change(image, level)


def _either_way(change: Change) -> Operation:
    return lambda image, level, rng: change(image, level if rng.random() < 0.5 else -level)


POINTWISE: dict[str, Change] = {  # a value becomes another, the same one in every image
    "invert": _image_ops("invert"),
    "posterize": _image_ops("posterize", lambda level: min(max(int(4 * level), 1), 8)),
    "solarize": _image_ops("solarize", lambda level: int(256 * level)),
    "contrast": _contrast,
    "brightness": _enhance("Brightness"),
    "solarize_add": _solarize_add,
}
GEOMETRIC: dict[str, Change] = {  # pixels move; a negative level is the other direction
    "rotate": lambda image, level: image.rotate(30.0 * level, fillcolor=_fill(image)),
    "shear_x": lambda image, level: _affine(image, (1.0, 0.3 * level, 0.0, 0.0, 1.0, 0.0)),
    "shear_y": lambda image, level: _affine(image, (1.0, 0.0, 0.0, 0.3 * level, 1.0, 0.0)),
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
_OTHERS: dict[str, Operation] = {
    "autocontrast": _always(_image_ops("autocontrast")),
    "equalize": _always(_image_ops("equalize")),
    "color": _always(_enhance("Color")),
    "sharpness": _always(_enhance("Sharpness")),
    "cutout": _cutout,
}
_ORDER = (  # what random numbers stand for
    *("autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color"),
    *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
    *("cutout", "solarize_add"),
)
_ALL = (
    {name: _always(change) for name, change in POINTWISE.items()}
    | {name: _either_way(change) for name, change in GEOMETRIC.items()}
    | _OTHERS
)
OPERATIONS: dict[str, Operation] = {name: _ALL[name] for name in _ORDER}
