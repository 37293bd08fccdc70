"""Batches of a source that workers read as it goes, on the device ahead of their use."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from flashpoint.lab.data.ahead import one_ahead
from flashpoint.lab.data.config import AugmentationConfig, DataConfig
from flashpoint.lab.data.cuts import Cutter, pack
from flashpoint.lab.data.device_images import ImageMaker, are_made_on, files_on_gpu, split
from flashpoint.lab.data.image_source import Source
from flashpoint.lab.data.streamed import (
    Decoded,
    Reader,
    Slot,
    Transformed,
    make_loader,
    start,
    upload,
)
from flashpoint.lab.data.transforms import Augmenter, Viewer


class Stream:
    """The batches of some slots, as often as they are asked for; workers stay alive in between.

    Where the device is a GPU, workers cut, and the GPU does the rest. Images that workers decoded
    are the same bit for bit. For validation they decode all.

    Args:
        source: of samples.
        transform: what happens to an image.
        slots: of each batch.
        sizes: how many slots each batch has.
        config: size of images, and workers.
        device: where batches are wanted.
        replaces: whether broken samples are replaced.
    """

    def __init__(
        self,
        source: Source,
        transform: Augmenter | Viewer,
        slots: Iterable[list[Slot]],
        sizes: Iterable[int],
        config: DataConfig,
        device: torch.device,
        *,
        replaces: bool,
    ) -> None:
        self._device, self._sizes = device, sizes
        self._maker: ImageMaker | None = None
        if are_made_on(device, config):
            size = transform.image_size
            self._maker = ImageMaker(size, _augmentation(transform), device)
            files = files_on_gpu(config, device) if isinstance(transform, Augmenter) else 0
            packs = partial(pack, size=size)
            reader = Reader(source, Cutter(transform, files), packs, replaces=replaces)
            slots = _Parts(slots)
        else:
            reader = Reader(source, Transformed(transform), replaces=replaces)
        self._loader = make_loader(reader, slots, config.workers, device)

    def __iter__(self) -> Iterator[Decoded]:
        read = start(self._loader)
        if self._maker is None:
            made = upload(read, self._device)
        else:
            made = self._maker.batches(read, self._sizes)
        return one_ahead(made, self._device) if self._device.type == "cuda" else made


def _augmentation(transform: Augmenter | Viewer) -> AugmentationConfig | None:
    return transform.config if isinstance(transform, Augmenter) else None


@dataclass(frozen=True)
class _Parts:
    """The same slots in lists that a worker reads at once."""

    slots: Iterable[list[Slot]]

    def __iter__(self) -> Iterator[list[Slot]]:
        return (part for batch in self.slots for part in split(batch))
