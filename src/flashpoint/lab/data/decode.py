"""Bytes of an image file to pixels: gray or RGB, 8 bits, whatever the file holds.

Alpha is dropped, palettes are resolved, CMYK is converted, 16 bits keep their upper 8. A rotation
noted in EXIF is ignored, as BigVision's decoder ignores it. An animation is its first frame.
"""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from flashpoint.errors import InputError, reason, require
from flashpoint.lab.data.image_source import BrokenImageError, Pixels
from flashpoint.lab.runs.stored import read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What Pillow may take a file for: it goes by content, and PostScript would be handed on."""


def require_pillow() -> ModuleType:
    """The module PIL.Image, or a line that says what to install."""
    return require("PIL.Image", "reading images", package="pillow")


def read_image_file(file: Path, name: str) -> bytes:
    """The bytes of an image file; a FIFO, a device or 256 MiB are a BrokenImageError."""
    try:
        return read_bytes(file)
    except InputError as error:
        raise BrokenImageError(f"{name}: {str(error).removeprefix(f'{file} ')}") from error


def decode(content: bytes, name: str | Callable[[], str]) -> "Image":
    """The image in mode L or RGB; whatever Pillow cannot read is a BrokenImageError.

    Args:
        content: of a file.
        name: begins the error's message; a function is asked only then.
    """
    pillow = require_pillow()
    from PIL import UnidentifiedImageError

    try:
        with warnings.catch_warnings():  # of odd metadata, of which only pixels matter
            warnings.simplefilter("ignore")
            image: Image = pillow.open(io.BytesIO(content), formats=FORMATS)
            image.load()
            return _plain(image)
    except UnidentifiedImageError as error:  # whose own text differs at every reading
        raise BrokenImageError(f"{_text(name)}: not a known image format") from error
    except Exception as error:  # Pillow's decoders raise all kinds of broken bytes
        raise BrokenImageError(f"{_text(name)}: {reason(error)}") from error


def _text(name: str | Callable[[], str]) -> str:
    return name if isinstance(name, str) else name()


def _plain(image: "Image") -> "Image":
    """Any of Pillow's modes as L or RGB."""
    mode = image.mode
    if mode in ("L", "RGB"):
        return image
    if mode in ("1", "LA", "La"):
        return image.convert("L")
    if mode.startswith("I"):  # 16 bits, which Pillow may also open as 32
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        return require_pillow().fromarray((wide >> 8).astype(np.uint8))
    if mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    if mode == "PA" or "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def to_pixels(image: "Image", channels: int) -> Pixels:
    """uint8 [C, H, W] of an image, as gray or as color."""
    mode = "L" if channels == 1 else "RGB"
    plane = np.asarray(image if image.mode == mode else image.convert(mode))
    return plane[None] if channels == 1 else np.ascontiguousarray(plane.transpose(2, 0, 1))
