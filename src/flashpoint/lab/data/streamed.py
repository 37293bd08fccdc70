"""Images read and decoded by worker processes, batch by batch, one batch ahead on the device."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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

STEPS_AHEAD = 1
"""Steps that the device may be behind when a further batch is made there: each takes memory."""

Slot = tuple[int, int]  # position in the order, number of the sample
Transform = Callable[["Image", int], Any]
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
        transform: makes of an image and its position what is handed over.
        pack: makes one of those of a batch.
        replaces: whether broken samples are replaced.
    """

    def __init__(
        self,
        source: Source,
        transform: Transform,
        pack: Pack | None = None,
        *,
        replaces: bool,
    ) -> None:
        self._source = source
        self._transform = transform
        self._pack = pack or _stack
        self._tries = min(MAX_TRIES, source.num_samples) if replaces else 1

    def __getitems__(self, slots: Sequence[Slot]) -> Decoded:
        """All samples of a batch."""
        images: list[Any] = []
        labels: list[int] = []
        broken: dict[int, str] = {}
        for place, (position, index) in enumerate(slots):
            found, reason = self._read(index)
            if reason is not None:
                broken[place] = reason
            if found is not None:
                images.append(self._transform(found[0], position))
                labels.append(found[1])
        targets = torch.tensor(labels, dtype=torch.int64)
        return Decoded(self._pack(images), targets, len(slots), broken)

    def _read(self, index: int) -> "tuple[tuple[Image, int] | None, str | None]":
        """An image with its label, and why the sample itself could not be read."""
        reason = None
        for step in range(self._tries):
            try:
                return self._source.read((index + step) % self._source.num_samples), reason
            except BrokenImageError as error:
                reason = reason or str(error)
        return None, reason


def _stack(images: Sequence[Pixels]) -> Tensor:
    stacked = np.stack(images) if images else np.empty((0, 0, 0, 0), dtype=np.uint8)
    return torch.from_numpy(stacked)


def make_loader(
    reader: Reader, slots: Iterable[list[Slot]], workers: int, device: torch.device
) -> DataLoader[Any]:
    """The batches of these slots in their order; workers stay for the next time."""
    return DataLoader(
        reader,
        batch_sampler=slots,
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        worker_init_fn=_leave_group if workers else None,
        prefetch_factor=READ_AHEAD if workers else None,
    )


def start(loader: DataLoader[Any]) -> Iterator[Decoded]:
    """Begin to read; workers only decode, so that forking them beside other threads is safe."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        return iter(loader)


def _leave_group(worker: int) -> None:
    """Let Ctrl-C and signals to the group reach the trainer alone, which ends its workers."""
    os.setpgrp()


def _as_it_is(decoded: Any) -> Any:
    return decoded


def normalize(images: Tensor) -> Tensor:
    """uint8 to float in [-1, 1]."""
    return images.to(torch.float32).div_(127.5).sub_(1.0)


def upload(batches: Iterable[Decoded], device: torch.device) -> Iterator[Decoded]:
    """The same on the device, images in [-1, 1]; on CUDA the next batch is copied meanwhile.

    So a batch is read before its predecessor is used: what counts batches in use stands behind.
    """
    moved = (_moved(batch, device) for batch in batches)
    return one_ahead(moved, device) if device.type == "cuda" else moved


def _moved(batch: Decoded, device: torch.device) -> Decoded:
    images = normalize(batch.images.to(device, non_blocking=True))
    return batch._replace(images=images, labels=batch.labels.to(device, non_blocking=True))


def one_ahead(batches: Iterator[Decoded], device: torch.device) -> Iterator[Decoded]:
    """Batches that are made on a stream of their own, each while the one before is used.

    A GPU that is behind is waited for, so that batches do not pile up in its memory.
    """
    stream = torch.cuda.Stream(device)
    used: deque[Any] = deque()
    ahead = _Made.next_of(batches, stream, device)
    while ahead is not None:
        following = _Made.next_of(batches, stream, device)
        yield ahead.received()
        ahead = following
        used.append(torch.cuda.current_stream(device).record_event())
        if len(used) > STEPS_AHEAD:
            used.popleft().synchronize()


class _Made:
    """A batch that a stream of its own makes."""

    def __init__(self, batch: Decoded, done: Any, device: torch.device) -> None:
        self._batch, self._done, self._device = batch, done, device

    @classmethod
    def next_of(
        cls, batches: Iterator[Decoded], stream: torch.cuda.Stream, device: torch.device
    ) -> "_Made | None":
        """The next batch, launched on the stream; None at the end."""
        with torch.cuda.stream(stream):
            batch = next(batches, None)
            return None if batch is None else cls(batch, stream.record_event(), device)

    def received(self) -> Decoded:
        """The batch, for use on the current stream, which waits until it is there."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._done)
        for tensor in (self._batch.images, self._batch.labels):
            tensor.record_stream(current)
        return self._batch
