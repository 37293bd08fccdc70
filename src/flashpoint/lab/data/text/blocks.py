"""Passages as blocks of a number of tokens, for language models.

All passages of a split are one row of ids, with the end of text behind each. A block is a part of
it, and its targets are the same ids one place further on. An epoch cuts the row at other places
than the one before, by its seed, and takes the blocks in a random order.

Shapes: b rows of this rank, N tokens of a block.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.order import Purpose, check_rank, generator, rank_positions
from flashpoint.lab.data.text.passages import Passages
from flashpoint.lab.data.text.pieces import Pieces
from flashpoint.lab.data.text.tokens import Ids, encode_texts
from flashpoint.shapes import Int

Block = tuple[Int[Tensor, "b N"], Int[Tensor, "b N"]]
"""Tokens, and for each the one that follows it."""


def encode_passages(passages: Passages, pieces: Pieces) -> Ids:
    """All passages as one row of ids, [T]; kept in the cache for the next time."""
    return encode_texts(
        [passage.text for passage in passages.passages], pieces, end=pieces.eos
    ).ids


class BlockBatches:
    """Endless training batches; batch t is a pure function of (seed, t).

    Args:
        ids: as ``encode_passages`` gives them; they live on the device.
        name: of their source, for messages.
        length: tokens of a block.
        rows: blocks of a batch, over all ranks.
        seed: of the run, 0 or more.
        rank, world_size: of this process, and how many there are.
        device: where batches are wanted.
    """

    def __init__(
        self,
        ids: Ids,
        name: str,
        *,
        length: int,
        rows: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        check_rank(rank, world_size)
        self.num_tokens = len(ids)
        self.blocks_per_epoch = (len(ids) - length) // length
        if self.blocks_per_epoch < 1:
            raise InputError(
                f"{name} has {len(ids)} tokens, too few for blocks of data.length={length}: twice "
                "that are needed. Give more text, or lower data.length."
            )
        self._rows, self._length, self._seed = rows, length, seed
        self._rank, self._world_size = rank, world_size
        self._ids = _resident(ids, device)
        self._starts: dict[int, Integers] = {}  # of the two epochs that were asked for last

    @property
    def batches_per_epoch(self) -> float:
        """Batches that see as many blocks as there are; need not be whole."""
        return self.blocks_per_epoch / self._rows

    def iterate(self, start_step: int = 0) -> Iterator[Block]:
        """Batches from this step on, without end."""
        step = start_step
        while True:
            place = {"rank": self._rank, "world_size": self._world_size}
            positions = rank_positions(step, self._rows, **place, with_neighbor=False)
            yield take_blocks(self._ids, self._starts_at(positions), self._length)
            step += 1

    def _starts_at(self, positions: Integers) -> Integers:
        """Where the blocks at these positions begin in the row of ids."""
        epochs, places = np.divmod(positions, self.blocks_per_epoch)
        found = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            found[chosen] = self._epoch(int(epoch))[places[chosen]]
        return found

    def _epoch(self, epoch: int) -> Integers:
        if epoch not in self._starts:
            self._starts = {e: kept for e, kept in self._starts.items() if e == epoch - 1}
            rng = generator(self._seed, Purpose.ORDER, epoch)
            first = int(rng.integers(self._length))
            order = rng.permutation(self.blocks_per_epoch).astype(np.int64)
            self._starts[epoch] = first + self._length * order
        return self._starts[epoch]


class BlockEvalBatches:
    """All tokens but the first as targets, once over all ranks, in blocks that do not overlap.

    What is left at the end is a batch of one shorter block.

    Args:
        ids, length, rows, rank, world_size, device: as ``BlockBatches`` has them.
    """

    def __init__(
        self,
        ids: Ids,
        *,
        length: int,
        rows: int,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        check_rank(rank, world_size)
        self._length, self._place = length, (rank, world_size)
        self._ids = _resident(ids, device)
        whole = np.arange(0, len(ids) - length, length, dtype=np.int64)
        self._rest = len(ids) - 1 - length * len(whole)
        self._batches = [whole[n : n + rows] for n in range(0, len(whole), rows)]

    def iterate(self) -> Iterator[Block]:
        """This rank's batches, once."""
        rank, world_size = self._place
        for starts in self._batches[rank::world_size]:
            yield take_blocks(self._ids, starts, self._length)
        if self._rest > 0 and rank == world_size - 1:
            start = np.array([len(self._ids) - 1 - self._rest])
            yield take_blocks(self._ids, start, self._rest)


def take_blocks(ids: Tensor, starts: Integers, length: int) -> Block:
    """Blocks that begin at these places, and their targets; waits for no device."""
    first = torch.from_numpy(starts)
    if ids.device.type == "cuda":
        first = first.pin_memory().to(ids.device, non_blocking=True)
    places = first[:, None] + torch.arange(length + 1, device=ids.device)  # [b, N + 1]
    rows = ids[places].long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _resident(ids: Ids, device: str | torch.device) -> Tensor:
    return torch.from_numpy(ids.astype(np.int32)).to(device)
