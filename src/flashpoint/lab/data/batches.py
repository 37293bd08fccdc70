"""Batches for training and validation, from any source, on any number of ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise, repeat

import numpy as np
import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.broken import BrokenLog, Gather
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.device_images import are_made_on, bytes_at_once, num_parts
from flashpoint.lab.data.image_source import Integers, Source
from flashpoint.lab.data.order import EpochOrder, Purpose, check_rank, generator, rank_positions
from flashpoint.lab.data.resident import ResidentAugmenter, ResidentImages, is_resident
from flashpoint.lab.data.stream import Stream
from flashpoint.lab.data.streamed import READ_AHEAD, Decoded, Slot, normalize
from flashpoint.lab.data.transforms import Augmenter, Viewer, view_of
from flashpoint.shapes import Float, Int


@dataclass(frozen=True, slots=True)
class Batch:
    """Images and labels of one rank.

    Attributes:
        images: float in [-1, 1], [b, C, S, S], on the device.
        labels: int64 [b], on the device.
        neighbor: image and label that precede the slice in the global batch, for mixup on
            several ranks; None where mixup is off or there is one rank.
    """

    images: Float[Tensor, "b C S S"]
    labels: Int[Tensor, " b"]
    neighbor: tuple[Float[Tensor, "1 C S S"], Int[Tensor, " 1"]] | None = None


class _ReadBatches:
    """What both kinds of batches know of images that cannot be read."""

    _log: BrokenLog

    @property
    def broken(self) -> list[str]:
        """What could not be read, each once: damaged shards, then images, with the reason."""
        return self._log.names

    def share_broken(self, gather: Gather) -> None:
        """Count what all ranks saw since the last time; all must call it, all get its error."""
        self._log.share(gather)


class TrainBatches(_ReadBatches):
    """Endless training batches; batch t is a pure function of (seed, t).

    An epoch is a permutation of all samples, and batches run on from one epoch into the next, so
    that no sample is left out. Rank r has the r-th slice of every global batch, and what happens
    to an image depends on the seed and its place in the order, never on ranks or workers.

    Args:
        source: of training images.
        config: augmentation, size, workers, and whether images live on the device.
        batch_size: samples a step over all ranks.
        seed: of the run, 0 or more.
        rank, world_size: of this process, and how many there are.
        device: where batches are wanted.

    Example:
        >>> from flashpoint.lab.data.image_kinds import open_source
        >>> config = DataConfig(train="digits", validation="digits", image_size=8, channels=1)
        >>> digits = open_source("digits", "train")
        >>> batches = TrainBatches(digits, config, batch_size=64, seed=0, device="cpu")
        >>> next(batches.iterate(1000)).images.shape
        torch.Size([64, 1, 8, 8])
    """

    def __init__(
        self,
        source: Source,
        config: DataConfig,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        _check_ranks(batch_size, rank, world_size)
        if batch_size % world_size:
            raise InputError(
                f"batch_size={batch_size} must be a multiple of the {world_size} ranks."
            )
        if seed < 0:
            raise InputError(f"seed={seed} must be 0 or more.")
        self._source, self._config, self._seed = source, config, seed
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._device = torch.device(device)
        self._has_neighbor = world_size > 1 and config.augmentation.mixup > 0.0
        self._order = EpochOrder(source, seed)
        self._augmenter: ResidentAugmenter | None = None
        self._log = _log(source, config, world_size, is_shuffled=True)
        if is_resident(source, config):
            stored = ResidentImages(source, config, self._device, replaces=True)
            self._log.add(source.num_samples, stored.broken)
            self._augmenter = ResidentAugmenter(stored, config.augmentation)

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self._source.num_samples

    @property
    def batches_per_epoch(self) -> float:
        """Samples of an epoch over the batch size; in general no whole number."""
        return self._source.num_samples / self._batch_size

    @property
    def is_resident(self) -> bool:
        """Whether the images live on the device."""
        return self._augmenter is not None

    @property
    def num_broken(self) -> int:
        """Samples that were replaced, as often as batches held them; of a resident set, once each.

        Batches that were read ahead and not handed out do not count.
        """
        return self._log.count

    @property
    def broken_share(self) -> float:
        """The same among the samples of these batches, or of the resident set."""
        return self._log.broken_share

    @property
    def broken_summary(self) -> str:
        """The same in one line, with the first of them; nothing if all could be read."""
        return self._log.summary

    def resume_broken(self, step: int, count: int) -> None:
        """Go on at a step, before which so many samples were broken; names begin anew."""
        if not self.is_resident:  # those are read whole at every start
            self._log.resume(step * self._batch_size, count)

    def bytes_ahead(self, batch_size: int) -> int:
        """Bytes on the device of images that wait beside a batch of this size, of this rank.

        Workers have theirs in the machine's memory, and on a GPU the next batch is there already.
        """
        config = self._config
        count = batch_size // self._world_size
        pixels = count * config.channels * config.image_size**2
        if self.is_resident:
            return 0
        if self._device.type == "cuda":
            is_made = are_made_on(self._device, config)
            made = bytes_at_once(config.image_size, count) if is_made else 0
            return 8 * pixels + made  # the next batch, and the last
        return pixels * (1 + READ_AHEAD * config.workers)

    def iterate(self, start_step: int = 0) -> Iterator[Batch]:
        """Batches from this step on, without end."""
        if start_step < 0:
            raise InputError(f"start_step={start_step} must be 0 or more.")
        if self._augmenter is not None:
            return (self._resident_batch(self._augmenter, step) for step in count(start_step))
        return self._streamed_batches(start_step)

    def _positions(self, step: int) -> Integers:
        return rank_positions(
            step,
            self._batch_size,
            self._rank,
            self._world_size,
            with_neighbor=self._has_neighbor,
        )

    def _resident_batch(self, augmenter: ResidentAugmenter, step: int) -> Batch:
        rng = generator(self._seed, Purpose.AUGMENTATION, step)
        draws = augmenter.draw(rng, self._batch_size)  # of all ranks, each takes its own
        positions = self._positions(step)
        samples = self._order.samples(positions)
        return self._batch(*augmenter(samples, draws[positions - step * self._batch_size]))

    def _streamed_batches(self, start_step: int) -> Iterator[Batch]:
        config = self._config
        augmenter = Augmenter(
            config.augmentation,
            view_of(self._source, config),
            config.image_size,
            config.channels,
            self._seed,
        )
        slots, sizes = _TrainSlots(self, start_step), repeat(len(self._positions(0)))
        stream = Stream(self._source, augmenter, slots, sizes, config, self._device, replaces=True)
        for batch in self._checked(iter(stream)):
            yield self._batch(batch.images, batch.labels)

    def slots(self, step: int) -> list[Slot]:
        """Positions and samples of this rank's part of a batch."""
        positions = self._positions(step)
        samples = self._order.samples(positions)
        return list(zip(positions.tolist(), samples.tolist(), strict=True))

    def _checked(self, batches: Iterator[Decoded]) -> Iterator[Decoded]:
        """Count what was broken; stop past the limit."""
        for batch in batches:
            own = batch.wanted - self._has_neighbor  # which another rank counts
            self._log.add(own, [name for place, name in batch.broken.items() if place < own])
            if len(batch.labels) < batch.wanted:
                raise InputError(
                    f"{self._source.name} has too many images in a row that cannot be read: "
                    f"{next(iter(batch.broken.values()))}."
                )
            yield batch

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        if not self._has_neighbor:
            return Batch(images, labels)
        return Batch(images[:-1], labels[:-1], (images[-1:], labels[-1:]))


@dataclass(frozen=True)
class _TrainSlots:
    """The slots of all batches from one on; a loader asks for them as it goes."""

    batches: TrainBatches
    start_step: int

    def __iter__(self) -> Iterator[list[Slot]]:
        return (self.batches.slots(step) for step in count(self.start_step))


class EvalBatches(_ReadBatches):
    """Validation batches: every sample once over all ranks, in the order of the source.

    All ranks have the same number of batches, of sizes that differ by one at most (none is empty
    unless there are fewer samples than ranks). A broken image is left out and counted.

    Args:
        source: of validation images.
        config: view, size, workers, and whether images live on the device.
        batch_size: samples a batch over all ranks, about.
        rank, world_size: of this process, and how many there are.
        device: where batches are wanted.
    """

    def __init__(
        self,
        source: Source,
        config: DataConfig,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        _check_ranks(batch_size, rank, world_size)
        self._source, self._config = source, config
        self._device = torch.device(device)
        self._spans = _spans(source.num_samples, batch_size, rank, world_size)
        self._log = _log(source, config, world_size, is_shuffled=False)
        self._stored: ResidentImages | None = None
        self._stream: Stream | None = None
        if is_resident(source, config):
            self._stored = ResidentImages(source, config, self._device, replaces=False)
            self._log.add(source.num_samples, self._stored.broken)
            self._spans = _spans(len(self._stored.labels), batch_size, rank, world_size)

    @property
    def num_samples(self) -> int:
        """Samples over all ranks."""
        return self._source.num_samples

    @property
    def num_batches(self) -> int:
        """Batches of this rank, as of every other."""
        return len(self._spans)

    def iterate(self) -> Iterator[Batch]:
        """All batches, once."""
        if self._stored is not None:
            for first, last in self._spans:
                images = normalize(self._stored.images[first:last])
                yield Batch(images, self._stored.labels[first:last])
            return
        for batch in self._checked():
            yield Batch(batch.images, batch.labels)

    def _checked(self) -> Iterator[Decoded]:
        """What workers decode, on the device; they stay alive for the next validation."""
        if self._stream is None:
            viewer = Viewer(
                view_of(self._source, self._config), self._config.image_size, self._config.channels
            )
            slots = [[(i, i) for i in range(*span)] for span in self._spans]
            workers = min(self._config.workers, sum(num_parts(len(each)) for each in slots))
            config = replace(self._config, workers=workers)
            sizes = [len(each) for each in slots]
            self._stream = Stream(
                self._source, viewer, slots, sizes, config, self._device, replaces=False
            )
        for batch in self._stream:
            self._log.add(batch.wanted, list(batch.broken.values()))
            if len(batch.labels):
                yield batch


def _log(source: Source, config: DataConfig, world_size: int, *, is_shuffled: bool) -> BrokenLog:
    """The log of a source; what lives on the device, every rank has read whole."""
    return BrokenLog(
        source,
        config.max_broken_share,
        is_shuffled=is_shuffled,
        num_ranks=1 if is_resident(source, config) else world_size,
    )


def _check_ranks(batch_size: int, rank: int, world_size: int) -> None:
    check_rank(rank, world_size)
    if batch_size < world_size:
        raise InputError(f"batch_size={batch_size} must be at least the {world_size} ranks.")


def _spans(
    num_samples: int, batch_size: int, rank: int, world_size: int
) -> Sequence[tuple[int, int]]:
    """From where to where each batch of a rank goes: even parts of even batches."""
    num_batches = max(1, min(math.ceil(num_samples / batch_size), num_samples // world_size))
    borders = np.arange(num_batches + 1) * num_samples // num_batches
    spans: list[tuple[int, int]] = []
    for first, last in pairwise(borders.tolist()):
        parts = [first + (last - first) * r // world_size for r in (rank, rank + 1)]
        if parts[0] < parts[1]:
            spans.append((parts[0], parts[1]))
    return spans
