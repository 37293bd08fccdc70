"""Images made on the GPU from what workers cut: resized, mirrored and changed by few kernels.

Of the same pixels it makes the same image as ``transforms.py`` does in a worker, bit for bit.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.config import AugmentationConfig, DataConfig
from flashpoint.lab.data.cuts import CHANNELS, MAX_AREA, MAX_PIXELS, Cuts, join
from flashpoint.lab.data.device_randaug import DeviceRandaug
from flashpoint.lab.data.gpu_decoding import DecodedFiles, GpuDecoder, can_decode
from flashpoint.lab.data.streamed import Decoded, Slot, normalize
from flashpoint.ops.implementations import HAS_TRITON
from flashpoint.shapes import Float, UInt8

PART = 128
"""Images at most that a worker hands over at once; a batch has many such parts."""

TOGETHER = 8
"""Parts at most that the GPU takes at once: launches wait for the interpreter, which the training
step uses too. More images at once take more memory."""


def are_made_on(device: torch.device, config: DataConfig) -> bool:
    """Whether images are resized on this device rather than by workers."""
    return (
        config.decode != "cpu"
        and device.type == "cuda"
        and HAS_TRITON
        and config.channels == CHANNELS
        and config.augmentation.crop != "pad"
    )


def files_on_gpu(config: DataConfig, device: torch.device) -> int:
    """Of five training images in a row, how many the GPU decodes if it can."""
    files = {"cpu": 0, "both": 3, "gpu": 5}
    if config.decode == "auto":
        return files["both"] if can_decode(device) else 0
    if config.decode != "cpu" and not can_decode(device):
        raise InputError(
            f"data.decode={config.decode!r} needs nvJPEG, which PyTorch reaches through a "
            f"torchvision for CUDA, and {device} has none. Set data.decode=cpu."
        )
    return files[config.decode]


def num_parts(num_slots: int) -> int:
    """How many parts a batch has, 1 at least."""
    return max(-(-num_slots // PART), 1)


def split(slots: list[Slot]) -> list[list[Slot]]:
    """The parts of a batch, as even as they can be.

    Example:
        >>> [len(part) for part in split([(0, 0)] * 300)]
        [100, 100, 100]
    """
    count = num_parts(len(slots))
    borders = [len(slots) * number // count for number in range(count + 1)]
    return [slots[first:last] for first, last in itertools.pairwise(borders)]


def bytes_at_once(size: int, batch_size: int) -> int:
    """Bytes on the device of what is made at once: pixels, rows between the passes, and levels.

    One and the next are there at a time.
    """
    count = min(TOGETHER * PART, batch_size)
    return 2 * count * CHANNELS * (MAX_PIXELS + size * size * (MAX_AREA + 4))


class ImageMaker:
    """Makes images of parts that workers cut, on the current stream; nothing waits for it.

    Args:
        size: height and width of the images.
        augmentation: what happens to them; None for validation.
        device: where to.
    """

    def __init__(
        self, size: int, augmentation: AugmentationConfig | None, device: torch.device
    ) -> None:
        self._size, self._device = size, device
        self._numbers = normalize(torch.arange(256, dtype=torch.uint8, device=device))
        self._decoder = GpuDecoder(device) if device.type == "cuda" else None
        self._randaug: DeviceRandaug | None = None
        if augmentation is not None and augmentation.randaug_ops:
            self._randaug = DeviceRandaug(augmentation.randaug_magnitude, size, device)

    def batches(self, parts: Iterator[Decoded], sizes: Iterable[int]) -> Iterator[Decoded]:
        """Batches of as many slots as ``sizes`` says, images in [-1, 1]."""
        for size in sizes:
            shape = (size, CHANNELS, self._size, self._size)
            images = torch.empty(shape, dtype=torch.float32, device=self._device)
            labels: list[Tensor] = []
            broken: dict[int, str] = {}
            wanted = count = 0
            while wanted < size:
                part = _take(parts, size - wanted)
                lost = self._fill(images[count : count + len(part.labels)], part.images)
                labels.append(self._send(part.labels))
                broken |= {wanted + at: why for at, why in (part.broken | lost).items()}
                wanted, count = wanted + part.wanted, count + len(part.labels)
            yield Decoded(images[:count], torch.cat(labels), wanted, broken)

    def _fill(self, numbers: Float[Tensor, "b 3 S S"], parts: Sequence[Cuts]) -> dict[int, str]:
        """The images of some parts, in [-1, 1]; gives those that no decoder reads, and why."""
        from flashpoint.lab.data.gpu.levels import launch_levels

        if not len(numbers):
            return {}
        levels, lost = self.levels(parts)
        launch_levels(levels, self._numbers, numbers)
        return lost

    def levels(self, parts: Sequence[Cuts]) -> tuple[UInt8[Tensor, "b 3 S S"], dict[int, str]]:
        """The images of some parts as levels, one at least, and those that are lost."""
        from flashpoint.lab.data.gpu.resample import launch_resample

        cuts = join([part for part in parts if len(part.places)], self._size)
        sizes = [len(each) for each in cuts.pixels]
        pixels = torch.empty(max(sum(sizes), 1), dtype=torch.uint8, device=self._device)
        for place, each in zip(pixels[: sum(sizes)].split(sizes), cuts.pixels, strict=True):
            place.copy_(each, non_blocking=True)
        decoded = DecodedFiles(cuts, self._decoder)
        decoded.note_places(pixels.data_ptr())
        shape = (len(cuts.places), CHANNELS, self._size, self._size)
        images = torch.empty(shape, dtype=torch.uint8, device=self._device)
        places, boxes = self._send(cuts.places), self._send(cuts.boxes)
        launch_resample(pixels, places, boxes, images, cuts.num_rows, cuts.most_rows)
        decoded.keep()
        if self._randaug is not None:
            images = self._randaug(images, self._send(cuts.operations))
        return images, decoded.lost

    def _send(self, tensor: Tensor) -> Tensor:
        """A small tensor on the device; from memory that is not pinned, the host would wait."""
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _take(parts: Iterator[Decoded], most: int) -> Decoded:
    """The next parts of a batch that wants ``most`` more slots, TOGETHER at most, as one.

    Its images are the list of theirs.
    """
    images, labels = [], []
    broken: dict[int, str] = {}
    wanted = 0
    for part in parts:
        images.append(part.images)
        labels.append(part.labels)
        broken |= {wanted + at: why for at, why in part.broken.items()}
        wanted += part.wanted
        if wanted >= most or len(images) == TOGETHER:
            break
    return Decoded(images, torch.cat(labels), wanted, broken)
