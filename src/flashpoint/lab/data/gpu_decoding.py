"""JPEG files decoded by the GPU: nvJPEG, through torchvision where it is installed.

Recent GPUs have engines for it, which leave the multiprocessors alone. Levels differ from
libjpeg's: colors are not smoothed between the pixels that share them.
"""

import functools
import importlib
import io
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashpoint.lab.data.cuts import CHANNELS, Joined
from flashpoint.lab.data.decode import decode, require_pillow, to_pixels
from flashpoint.lab.data.image_source import BrokenImageError
from flashpoint.lab.data.randaug import GRAY
from flashpoint.shapes import UInt8


@functools.cache
def can_decode(device: torch.device) -> bool:
    """Whether the GPU can be asked: a small file is decoded to find out."""
    if device.type != "cuda":
        return False
    buffer = io.BytesIO()
    require_pillow().new("RGB", (16, 16)).save(buffer, "JPEG")
    file = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    try:
        return len(_decode([file], device)) == 1
    except (ImportError, RuntimeError, OSError, AttributeError):
        return False


def _decode(files: list[Tensor], device: torch.device) -> list[Tensor]:
    with warnings.catch_warnings():  # an incomplete torchvision warns when it is imported
        warnings.simplefilter("ignore")
        io_module: Any = importlib.import_module("torchvision.io")

    return io_module.decode_jpeg(files, mode=io_module.ImageReadMode.RGB, device=device)


class GpuDecoder:
    """Decodes files, for use on the current stream.

    nvJPEG has a stream of its own and writes without a look at others. So its results are kept in
    memory that nothing else uses, until the work that reads them is done.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._kept: deque[tuple[Any, list[Tensor]]] = deque()

    def __call__(self, files: list[UInt8[Tensor, " n"]]) -> list[UInt8[Tensor, "3 h w"]]:
        """The images; RuntimeError if one of them cannot be decoded. ``keep`` must follow."""
        while self._kept and self._kept[0][0].query():
            self._kept.popleft()
        with torch.cuda.stream(self._stream):
            images = _decode(files, self.device)
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return images

    def keep(self, images: list[Tensor]) -> None:
        """Hold images and files until the current stream has done what was launched so far."""
        done = torch.cuda.current_stream(self.device).record_event()
        self._kept.append((done, images))


class DecodedFiles:
    """The files among some images, decoded at once.

    What nvJPEG refuses, Pillow decodes. What Pillow refuses too becomes gray.

    Attributes:
        lost: the latter, by their places, and why.
    """

    def __init__(self, cuts: Joined, decoder: GpuDecoder | None) -> None:
        self.lost: dict[int, str] = {}
        self._images: list[Tensor] = []
        self._decoder, self._cuts = decoder, cuts
        if not cuts.files:
            return
        assert decoder is not None  # only workers of a GPU hand over files
        self._images = self._decode_some(decoder, cuts.files)

    def _decode_some(self, decoder: GpuDecoder, files: list[tuple[int, Tensor]]) -> list[Tensor]:
        """Files at their places; nvJPEG refuses all for one of them, which halves find."""
        try:
            return decoder([file for _, file in files])
        except RuntimeError:
            if len(files) == 1:
                return [self._by_host(*files[0], decoder.device)]
        half = len(files) // 2
        halves = (files[:half], files[half:])
        return [image for some in halves for image in self._decode_some(decoder, some)]

    def _by_host(self, place: int, file: Tensor, device: torch.device) -> Tensor:
        width, height = self._cuts.places[place, 4:6].tolist()
        name = f"a JPEG file of {width} x {height}"
        try:
            pixels = to_pixels(decode(file.numpy().tobytes(), name), CHANNELS)
        except BrokenImageError as error:
            self.lost[place] = str(error)
            pixels = np.full((CHANNELS, height, width), GRAY, dtype=np.uint8)
        return torch.from_numpy(pixels).to(device)

    def note_places(self, base: int) -> None:
        """Write into the images' places where files are in memory, counted from ``base``."""
        if self._images:
            starts = [image.data_ptr() - base for image in self._images]
            self._cuts.places[[place for place, _ in self._cuts.files], 0] += torch.tensor(starts)

    def keep(self) -> None:
        """Hold the images until what was launched so far is done."""
        if self._images and self._decoder is not None:
            self._decoder.keep([*self._images, *(file for _, file in self._cuts.files)])
