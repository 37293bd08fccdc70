"""Which chunks make a batch: of similar length, as many as a number of tokens allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flashpoint.data.source import Integers
from flashpoint.data.text.chunks import Chunks
from flashpoint.errors import InputError

WIDTH_MULTIPLE = 64
ROW_MULTIPLE = 8


@dataclass(frozen=True)
class PlannedBatch:
    """Rows of one batch, over all ranks.

    Attributes:
        chunks: the number of each row's chunk.
        widths: of the source and the target tensors, multiples of 64.
    """

    chunks: Integers
    widths: tuple[int, int]

    def slice(self, rank: int, world_size: int) -> Integers:
        """The rows of one rank."""
        borders = [len(self.chunks) * r // world_size for r in (rank, rank + 1)]
        return self.chunks[borders[0] : borders[1]]


def rows_of_width(width: int, tokens_per_batch: int) -> int:
    """How many rows fit; a multiple of 8, if 8 do.

    Example:
        >>> rows_of_width(512, 16_384), rows_of_width(192, 16_384), rows_of_width(2048, 4096)
        (32, 80, 2)
    """
    rows = tokens_per_batch // width
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def check_rows(length: int, tokens_per_batch: int, world_size: int) -> None:
    """Refuse a number of tokens whose rows do not go evenly onto the ranks."""
    for width in range(WIDTH_MULTIPLE, int(_padded(np.array(length))) + 1, WIDTH_MULTIPLE):
        rows = rows_of_width(width, tokens_per_batch)
        if rows == 0 or rows % world_size:
            raise InputError(
                f"tokens_per_batch={tokens_per_batch} gives {rows} rows of {width} tokens, which "
                f"must be a multiple of the {world_size} ranks (rows are rounded down to a "
                f"multiple of {ROW_MULTIPLE})."
            )


def plan_training(
    chunks: Chunks, tokens_per_batch: int, rng: np.random.Generator
) -> list[PlannedBatch]:
    """All chunks in full batches, in random order.

    Where chunks are left over, a batch is filled up with some that are in another one, too.
    """
    widths, order = _sorted_widths(chunks, rng.permutation(len(chunks)))
    batches: list[PlannedBatch] = []
    for first, last in pairwise(_borders(widths.max(axis=0)[order], tokens_per_batch)):
        chosen = order[first:last]
        if first == 0:
            missing = rows_of_width(int(widths[:, order[0]].max()), tokens_per_batch) - last
            others = rng.permutation(order[last:] if last < len(order) else order)
            chosen = np.concatenate((chosen, np.resize(others, missing)))
        batches.append(_batch(widths, rng.permutation(chosen)))
    return [batches[n] for n in rng.permutation(len(batches))]


def plan_evaluation(chunks: Chunks, tokens_per_batch: int, world_size: int) -> list[PlannedBatch]:
    """Every chunk once; a row at least for every rank in every batch, if there are as many."""
    widths, order = _sorted_widths(chunks, np.arange(len(chunks)))
    borders = _borders(widths.max(axis=0)[order], tokens_per_batch)
    if len(borders) > 2 and borders[1] < world_size:
        del borders[1]
    return [_batch(widths, order[first:last]) for first, last in pairwise(borders)]


def padding_share(chunks: Chunks, batches: Sequence[PlannedBatch]) -> float:
    """The part of all batches' tensors that is padding."""
    held = sum(int(chunks.lengths[:, batch.chunks].sum()) for batch in batches)
    return 1.0 - held / sum(len(batch.chunks) * sum(batch.widths) for batch in batches)


def _sorted_widths(chunks: Chunks, tie_order: Integers) -> tuple[Integers, Integers]:
    """Padded source and target widths of the chunks, [2, N], and their order, widest first."""
    widths = _padded(chunks.lengths)
    source, target = widths[:, tie_order]
    order = np.lexsort((-source, -target, -np.maximum(source, target)))
    return widths, tie_order[order]


def _borders(widths: Integers, tokens_per_batch: int) -> list[int]:
    """Cuts chunks of falling width into batches, each full but the first, which is the widest."""
    borders = [len(widths)]
    while borders[-1] > 0:
        last = borders[-1]
        first = last - 1
        for _ in range(2):  # rows by the narrowest are too many if the widest of them is wider
            rows = max(1, rows_of_width(int(widths[first]), tokens_per_batch))
            first = max(0, last - rows)
        borders.append(first)
    return borders[::-1]


def _batch(widths: Integers, chosen: Integers) -> PlannedBatch:
    source, target = widths[:, chosen].max(axis=1).tolist()
    return PlannedBatch(chosen, (source, target))


def _padded(lengths: Integers) -> Integers:
    return -(-lengths // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
