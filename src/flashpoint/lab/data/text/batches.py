"""Batches of documents for training and validation, on any number of ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.order import Purpose, check_rank, generator
from flashpoint.lab.data.text.batch_plan import (
    PlannedBatch,
    check_rows,
    padding_share,
    plan_evaluation,
    plan_training,
    widths_of,
)
from flashpoint.lab.data.text.chunks import Chunks, cut_documents, num_too_long
from flashpoint.lab.data.text.config import DocumentConfig
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.pieces import BOS, EOS, PAD, Pieces
from flashpoint.lab.data.text.tokens import TokenDocuments, TokenSide, encode_documents
from flashpoint.shapes import Int


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Sources and targets of one rank, padded with 0 to one width L, the same for all ranks.

    Attributes:
        source: segments with separators between them and the end behind, int64 [b, L].
        source_lengths: tokens that are no padding, int64 [b].
        target_in: begin, then the target without its end: what a decoder reads, int64 [b, L].
        target_out: the target and its end: what it predicts, int64 [b, L].
        target_lengths: of both, int64 [b].
        num_tokens: of the targets of this batch, over all ranks.
    """

    source: Int[Tensor, "b L"]
    source_lengths: Int[Tensor, " b"]
    target_in: Int[Tensor, "b L"]
    target_out: Int[Tensor, "b L"]
    target_lengths: Int[Tensor, " b"]
    num_tokens: int


class TextBatches:
    """Endless training batches; batch t is a pure function of (seed, t).

    An epoch takes all documents in a random order, cuts and joins them to samples, once at each
    resolution, and makes batches of samples of similar length. Rank r has the r-th slice of every
    batch.

    Args:
        documents: to learn from.
        pieces: subword pieces.
        config: length of samples, whether documents are joined, and resolutions.
        tokens_per_batch: rows times their width, at most; over all ranks.
        seed: of the run, 0 or more.
        rank, world_size: of this process, and how many there are.
        device: where batches are wanted.
    """

    def __init__(
        self,
        documents: Documents,
        pieces: Pieces,
        config: DocumentConfig,
        *,
        tokens_per_batch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        self._widths = widths_of(config)
        check_rows(self._widths, tokens_per_batch, world_size)
        check_rank(rank, world_size)
        if seed < 0:
            raise InputError(f"seed={seed} must be 0 or more.")
        self._config, self._seed = config, seed
        self._tokens_per_batch = tokens_per_batch
        self._rank, self._world_size = rank, world_size
        self._device = torch.device(device)
        self._tokens = encode_documents(documents, pieces)
        self._tokens_until = [0]  # before each step of the epochs that were planned
        self._num_planned = 0

    @cached_property
    def _first_epoch(self) -> "_Epoch":
        return self._epoch(0)

    @property
    def num_samples(self) -> int:
        """Samples of the first epoch; later ones have about as many."""
        return len(self._first_epoch.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens of an epoch's targets, with a separator or an end behind each segment."""
        return int(self._first_epoch.chunks.lengths[1].sum())

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens of the source and of the target of a sample, in the mean."""
        source, target = self._first_epoch.chunks.lengths.mean(axis=1).tolist()
        return source, target

    def tokens_until(self, step: int) -> int:
        """Tokens of the targets of all batches before a step, over all ranks."""
        while len(self._tokens_until) <= step:
            self._epoch(self._num_planned)
        return self._tokens_until[step]

    @property
    def batches_per_epoch(self) -> int:
        """Batches of the first epoch; later ones have about as many."""
        return len(self._first_epoch.batches)

    @property
    def padding_share(self) -> float:
        """The part of the first epoch's tensors that is padding."""
        return padding_share(self._first_epoch.chunks, self._first_epoch.batches)

    @property
    def num_too_long(self) -> int:
        """Segments longer than a sample, which are left out."""
        return num_too_long(self._tokens, self._config.length)

    def iterate(self, start_step: int = 0) -> Iterator[TextBatch]:
        """Batches from this step on, without end."""
        if start_step < 0:
            raise InputError(f"start_step={start_step} must be 0 or more.")
        return self._iterate(start_step)

    def _iterate(self, place: int) -> Iterator[TextBatch]:
        """Batches from this place in the first epoch on, which may be past its end."""
        for number in count():
            epoch = self._epoch(number) if number else self._first_epoch
            if place < len(epoch.batches):  # else it is planned for its number of batches only
                assembler = _Assembler(self._tokens, epoch.chunks, self._device)
                for batch in epoch.batches[place:]:
                    yield assembler.batch(batch, self._rank, self._world_size)
            place = max(0, place - len(epoch.batches))

    def _epoch(self, number: int) -> "_Epoch":
        rng = generator(self._seed, Purpose.ORDER, number)
        config = self._config
        chunks = cut_documents(
            self._tokens,
            config.length,
            join=config.join,
            resolutions=config.resolutions,
            by_segment=config.by_segment,
            rng=rng,
        )
        planned = plan_training(chunks, self._widths, self._tokens_per_batch, rng)
        epoch = _Epoch(chunks, planned)
        if number == self._num_planned:
            self._num_planned += 1
            for batch in epoch.batches:
                self._tokens_until.append(self._tokens_until[-1] + _num_tokens(chunks, batch))
        return epoch


class TextEvalBatches:
    """Validation batches: every sample once over all ranks, of similar length in a batch.

    Documents are cut, and joined if the config says so, in the order they have.

    Args:
        documents: to validate on.
        pieces: subword pieces.
        config: what a sample holds, its length, and whether documents are joined; one
            resolution, always.
        tokens_per_batch: rows times their width, about; over all ranks.
        rank, world_size: of this process, and how many there are.
        device: where batches are wanted.
    """

    def __init__(
        self,
        documents: Documents,
        pieces: Pieces,
        config: DocumentConfig,
        *,
        tokens_per_batch: int,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        check_rank(rank, world_size)
        self._rank, self._world_size = rank, world_size
        self._tokens = encode_documents(documents, pieces)
        self._chunks = cut_documents(
            self._tokens, config.length, join=config.join, by_segment=config.by_segment
        )
        widths = widths_of(config)
        self._batches = plan_evaluation(self._chunks, widths, tokens_per_batch, world_size)
        self._assembler = _Assembler(self._tokens, self._chunks, torch.device(device))
        self.num_too_long = num_too_long(self._tokens, config.length)
        """Segments longer than a sample, which are left out."""

    @property
    def num_samples(self) -> int:
        """Samples over all ranks."""
        return len(self._chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens of all targets, with a separator or an end behind each segment."""
        return int(self._chunks.lengths[1].sum())

    @property
    def num_batches(self) -> int:
        """Batches of all ranks; a rank without rows in one does not get it."""
        return len(self._batches)

    @property
    def padding_share(self) -> float:
        """The part of all tensors that is padding."""
        return padding_share(self._chunks, self._batches)

    def iterate(self) -> Iterator[TextBatch]:
        """All batches, once."""
        for batch in self._batches:
            if len(batch.slice(self._rank, self._world_size)):
                yield self._assembler.batch(batch, self._rank, self._world_size)


@dataclass(frozen=True)
class _Epoch:
    """All samples in an order, and which of them make a batch."""

    chunks: Chunks
    batches: list[PlannedBatch]


def _num_tokens(chunks: Chunks, batch: PlannedBatch) -> int:
    """Of a batch's targets, over all ranks."""
    return int(chunks.lengths[1, batch.chunks].sum())


class _Assembler:
    """Makes tensors of planned batches; a chunk is a slice of the tokens in the chunks' order."""

    def __init__(self, tokens: TokenDocuments, chunks: Chunks, device: torch.device) -> None:
        self._chunks, self._device = chunks, device
        self._sides = [side.take(chunks.segments) for side in tokens.sides]

    def batch(self, planned: PlannedBatch, rank: int, world_size: int) -> TextBatch:
        """One rank's part of a batch."""
        chosen = planned.slice(rank, world_size)
        lengths = self._chunks.lengths[:, chosen]
        source, target = (self._rows(side, chosen, planned.width) for side in self._sides)
        shifted = np.full_like(target, PAD)
        shifted[:, 0] = BOS
        shifted[:, 1:] = np.where(target[:, :-1] == EOS, PAD, target[:, :-1])
        return TextBatch(
            self._upload(source),
            self._upload(lengths[0]),
            self._upload(shifted),
            self._upload(target),
            self._upload(lengths[1]),
            num_tokens=_num_tokens(self._chunks, planned),
        )

    def _rows(self, side: TokenSide, chosen: Integers, width: int) -> Integers:
        """Each chunk a row, its last separator turned into the end."""
        rows = np.full((len(chosen), width), PAD, dtype=np.int64)
        starts = side.offsets[self._chunks.starts[chosen]]
        ends = side.offsets[self._chunks.ends[chosen]]
        for row, start, end in zip(rows, starts.tolist(), ends.tolist(), strict=True):
            row[: end - start] = side.ids[start:end]
            row[end - start - 1] = EOS
        return rows

    def _upload(self, array: Integers) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)
