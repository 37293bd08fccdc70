"""Images made on the GPU from what workers cut: resized, mirrored and changed by few kernels.

Every image is bit for bit what ``transforms.py`` makes of it in a worker.
"""

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from flashpoint.lab.data.config import AugmentationConfig, DataConfig
from flashpoint.lab.data.cuts import CHANNELS, MAX_AREA, Cuts
from flashpoint.lab.data.device_randaug import DeviceRandaug
from flashpoint.lab.data.streamed import Decoded, Slot, normalize
from flashpoint.ops.implementations import HAS_TRITON
from flashpoint.shapes import Float, UInt8

PART = 128
"""Images at most that a worker hands over at once; a batch has many such parts."""


def are_made_on(device: torch.device, config: DataConfig) -> bool:
    """Whether images are resized on this device rather than by workers."""
    return (
        device.type == "cuda"
        and HAS_TRITON
        and config.channels == CHANNELS
        and config.augmentation.crop != "pad"
    )


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


def bytes_per_part(size: int) -> int:
    """Bytes on the device of the largest part: its pixels, rows between the passes, and levels.

    Parts follow each other, so that one and the next are there at a time.
    """
    return 2 * PART * CHANNELS * size * size * (2 * MAX_AREA + 2)


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
                part = next(parts)
                self._fill(images[count : count + len(part.labels)], part.images)
                labels.append(part.labels.to(self._device, non_blocking=True))
                broken |= {wanted + place: why for place, why in part.broken.items()}
                wanted, count = wanted + part.wanted, count + len(part.labels)
            yield Decoded(images[:count], torch.cat(labels), wanted, broken)

    def _fill(self, numbers: Float[Tensor, "b 3 S S"], cuts: Cuts) -> None:
        """The images of a part, in [-1, 1]."""
        from flashpoint.lab.data.gpu.levels import launch_levels

        if len(numbers):
            launch_levels(self.levels(cuts), self._numbers, numbers)

    def levels(self, cuts: Cuts) -> UInt8[Tensor, "b 3 S S"]:
        """The images of a part that has some, as levels."""
        from flashpoint.lab.data.gpu.resample import launch_resample

        shape = (len(cuts.places), CHANNELS, self._size, self._size)
        images = torch.empty(shape, dtype=torch.uint8, device=self._device)
        pixels, places, boxes, operations = (
            tensor.to(self._device, non_blocking=True)
            for tensor in (cuts.pixels, cuts.places, cuts.boxes, cuts.operations)
        )
        launch_resample(pixels, places, boxes, images, cuts.num_rows, cuts.most_rows)
        return images if self._randaug is None else self._randaug(images, operations)
