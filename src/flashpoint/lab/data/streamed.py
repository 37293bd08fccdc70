"""Images read and decoded by worker processes, batch by batch."""

import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flashpoint.lab.data.cuts import Cuts
from flashpoint.lab.data.image_source import BrokenImageError, Pixels, Source

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TRIES = 1000
READ_AHEAD = 2
"""Batches that each worker has ready."""
TO_THE_GROUP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that terminals and launchers send to a process and all that it started."""

Slot = tuple[int, int]  # position in the order, number of the sample
Transform = Callable[["Image", int], Pixels]
Take = Callable[[Source, int, int], tuple[Any, int]]
Pack = Callable[[Sequence[Any]], "Tensor | Cuts"]


class Decoded(NamedTuple):
    """What a worker hands over, and ``upload`` passes on.

    Attributes:
        images: [b, C, S, S]; a worker's are uint8, or parts of images for a GPU to resize; on the
            device they are float in [-1, 1].
        labels: int64 [b].
        wanted: how many samples were asked for.
        broken: the places in the batch that could not be read, and why.
    """

    images: Any
    labels: Tensor
    wanted: int
    broken: dict[int, str]


class Reader(Dataset[Any]):
    """Reads batches of samples in a worker.

    A broken sample is replaced by the next readable one of the source, or left out.

    Args:
        source: of samples.
        take: reads a sample for a position: what is handed over, and its label.
        pack: makes one of those of a batch.
        replaces: whether broken samples are replaced.
    """

    def __init__(
        self,
        source: Source,
        take: Take,
        pack: Pack | None = None,
        *,
        replaces: bool,
    ) -> None:
        self._source = source
        self._take = take
        self._pack = pack or _stack
        self._tries = min(MAX_TRIES, source.num_samples) if replaces else 1

    def __getitems__(self, slots: Sequence[Slot]) -> Decoded:
        """All samples of a batch."""
        images: list[Any] = []
        labels: list[int] = []
        broken: dict[int, str] = {}
        for place, (position, index) in enumerate(slots):
            found, reason = self._read(index, position)
            if reason is not None:
                broken[place] = reason
            if found is not None:
                images.append(found[0])
                labels.append(found[1])
        targets = torch.tensor(labels, dtype=torch.int64)
        return Decoded(self._pack(images), targets, len(slots), broken)

    def _read(self, index: int, position: int) -> tuple[tuple[Any, int] | None, str | None]:
        """What a sample became, with its label, and why the sample itself could not be read."""
        reason = None
        for step in range(self._tries):
            try:
                sample = (index + step) % self._source.num_samples
                return self._take(self._source, sample, position), reason
            except BrokenImageError as error:
                reason = reason or str(error)
        return None, reason


@dataclass(frozen=True)
class Transformed:
    """Takes samples as pixels."""

    transform: Transform

    def __call__(self, source: Source, index: int, position: int) -> tuple[Pixels, int]:
        """uint8 [C, S, S], and the label."""
        image, label = source.read(index)
        return self.transform(image, position), label


def _stack(images: Sequence[Pixels]) -> Tensor:
    stacked = np.stack(images) if images else np.empty((0, 0, 0, 0), dtype=np.uint8)
    return torch.from_numpy(stacked)


def make_loader(
    reader: Dataset[Any], slots: Iterable[list[Slot]], workers: int, device: torch.device
) -> DataLoader[Any]:
    """The batches of these slots in their order; workers stay for the next time."""
    return DataLoader(
        reader,
        batch_sampler=slots,
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        worker_init_fn=partial(_start_worker, device.type) if workers else None,
        prefetch_factor=READ_AHEAD if workers else None,
    )


def start(loader: DataLoader[Any]) -> Iterator[Any]:
    """Begin to read; workers only decode, so that forking them beside other threads is safe."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, TO_THE_GROUP)  # till workers have left it
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "This process .* is multi-threaded", DeprecationWarning
            )
            return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def _start_worker(device: str, worker: int) -> None:
    """Let Ctrl-C and signals to the group reach the trainer alone, which ends its workers.

    A GPU waits for its trainer, so that this one goes first where cores are short.
    """
    os.setpgrp()
    while early := signal.sigpending() & TO_THE_GROUP:
        signal.sigwait(early)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_THE_GROUP)
    if device == "cuda":
        os.nice(5)


def _as_it_is(decoded: Any) -> Any:
    return decoded


def normalize(images: Tensor) -> Tensor:
    """uint8 to float in [-1, 1]."""
    return images.to(torch.float32).div_(127.5).sub_(1.0)


def upload(batches: Iterable[Decoded], device: torch.device) -> Iterator[Decoded]:
    """The same on the device, images in [-1, 1]."""
    return (_moved(batch, device) for batch in batches)


def _moved(batch: Decoded, device: torch.device) -> Decoded:
    images = normalize(batch.images.to(device, non_blocking=True))
    return batch._replace(images=images, labels=batch.labels.to(device, non_blocking=True))
