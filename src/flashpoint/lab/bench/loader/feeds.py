"""Who reads the shards: this library, timm, and workers that decode and do nothing else."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch.utils.data import Dataset

from flashpoint.lab.data.batches import TrainBatches
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.device_images import PART
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import Source
from flashpoint.lab.data.streamed import make_loader, start

Feed = Callable[[DataConfig, int, torch.device], Iterator[int]]
"""Gives how many images each batch has; endless."""


def flashpoint_feed(config: DataConfig, batch_size: int, device: torch.device) -> Iterator[int]:
    """Batches of a run, mixup left out: it is part of a step's time there."""
    source = open_source(config.train, "train")
    batches = TrainBatches(source, config, batch_size=batch_size, seed=0, device=device)
    return (len(batch.images) for batch in batches.iterate())


def timm_feed(config: DataConfig, batch_size: int, device: torch.device) -> Iterator[int]:
    """timm's loader and prefetcher, with its own crop, flip and randaug."""
    from timm.data.loader import create_loader

    augmentation = config.augmentation
    strength = f"rand-m{augmentation.randaug_magnitude:.0f}-n{augmentation.randaug_ops}"
    dataset: Any = _TimmImages(open_source(config.train, "train"))
    loader = create_loader(
        dataset,
        input_size=(config.channels, config.image_size, config.image_size),
        batch_size=batch_size,
        is_training=True,
        scale=(augmentation.min_area, 1.0),
        hflip=0.5 if augmentation.flip else 0.0,
        auto_augment=strength,
        interpolation="bilinear",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        num_workers=config.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=config.workers > 0,
        use_prefetcher=device.type == "cuda",
        device=device,
    )
    return (len(images) for _ in count() for images, _ in loader)


class _TimmImages(Dataset[Any]):
    """The same samples as timm takes them; its loader sets the transform."""

    transform: Callable[[Any], Any]

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.num_samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self._source.read(index)
        return self.transform(image), label


def decode_feed(config: DataConfig, batch_size: int, device: torch.device) -> Iterator[int]:
    """Images that workers decode and drop: the most that reading in this way can give."""
    source = open_source(config.train, "train")
    num_samples = source.num_samples
    parts = (
        [(i, i % num_samples) for i in range(first, first + min(PART, batch_size))]
        for first in count(0, min(PART, batch_size))
    )
    return start(make_loader(_Decode(source), parts, config.workers, device))


class _Decode(Dataset[Any]):
    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, slots: list[tuple[int, int]]) -> int:
        for _, index in slots:
            self._source.read(index)
        return len(slots)


def by_workers_feed(config: DataConfig, batch_size: int, device: torch.device) -> Iterator[int]:
    """Batches of a run whose images are all decoded by workers."""
    return flashpoint_feed(replace(config, decode="cpu"), batch_size, device)


FEEDS: dict[str, Feed] = {
    "decode only": decode_feed,
    "flashpoint": flashpoint_feed,
    "flashpoint, decode cpu": by_workers_feed,
    "timm": timm_feed,
}


def images_per_s(
    sizes: Iterator[int], device: torch.device, *, warm_s: float, seconds: float
) -> float:
    """The rate after a while, when nothing is left of what was read ahead at the beginning."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < warm_s:
        next(sizes)
    _wait(device)
    begun, images = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or not images:
        images += next(sizes)
    _wait(device)
    return images / (time.perf_counter() - begun)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
