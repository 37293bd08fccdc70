"""Which chunks make a batch: of similar length, as many as a number of tokens allows.

Batches come in few shapes: source and target are equally wide, widths are 32, or 64 times 1, 2, 3,
4, 6, 8, 12, 16, ..., and a width settles the number of rows. So kernels and graphs that were made
for one batch serve others.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.text.chunks import Chunks

NARROWEST = 32
WIDTH_MULTIPLE = 64
ROW_MULTIPLE = 8
_TRIES = 4096  # sizes, before it is said that there is none


@dataclass(frozen=True)
class PlannedBatch:
    """Rows of one batch, over all ranks.

    Attributes:
        chunks: the number of each row's chunk.
        width: of the source and of the target tensors.
    """

    chunks: Integers
    width: int

    def slice(self, rank: int, world_size: int) -> Integers:
        """The rows of one rank."""
        borders = [len(self.chunks) * r // world_size for r in (rank, rank + 1)]
        return self.chunks[borders[0] : borders[1]]


def widths_for(length: int) -> list[int]:
    """All widths that batches of chunks up to a length may have, rising.

    Example:
        >>> widths_for(500), widths_for(700)
        ([32, 64, 128, 192, 256, 384, 512], [32, 64, 128, 192, 256, 384, 512, 704])
    """
    if length <= NARROWEST:
        return [NARROWEST]
    widest = -(-length // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    widths = [NARROWEST, WIDTH_MULTIPLE, 2 * WIDTH_MULTIPLE, 3 * WIDTH_MULTIPLE]
    while widths[-1] < widest:
        widths.append(2 * widths[-2])
    return [*(width for width in widths if width < widest), widest]


def rows_of_width(width: int, tokens_per_batch: int) -> int:
    """How many rows fit; a multiple of 8, if 8 do.

    Example:
        >>> rows_of_width(512, 16_384), rows_of_width(192, 16_384), rows_of_width(2048, 4096)
        (32, 80, 2)
    """
    rows = tokens_per_batch // width
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def check_rows(length: int, batch_size: int, num_processes: int, num_parts: int = 1) -> None:
    """Refuse a number of tokens a batch whose rows cannot be shared out evenly.

    Args:
        length: of the longest samples.
        batch_size: tokens that a batch has room for.
        num_processes: that share a batch.
        num_parts: that each of them cuts its share into.
    """
    shares = num_processes * num_parts
    for width in widths_for(length):
        rows = rows_of_width(width, batch_size)
        if not _can_share(rows, shares):
            raise InputError(
                f"batch_size={batch_size} has room for {rows} rows of {width} tokens (from "
                f"{ROW_MULTIPLE} on by {ROW_MULTIPLE}s), which {num_processes} processes x "
                f"{num_parts} parts must share evenly, a row each at least. The next larger that "
                f"works with data.length={length} is batch_size="
                f"{_next_batch_size(length, batch_size, shares)}."
            )


def largest_batch_size(length: int, most: int, shares: int) -> int:
    """The largest number of tokens up to ``most`` whose rows can be shared out; 0 for none.

    Example:
        >>> largest_batch_size(512, 5000, 1), largest_batch_size(512, 50_000, 3)
        (5000, 37088)
    """
    lowest = max(0, most - _TRIES * NARROWEST)
    for size in (most, *range(most - most % NARROWEST, lowest, -NARROWEST)):
        if all(_can_share(rows_of_width(width, size), shares) for width in widths_for(length)):
            return size
    return 0


def _can_share(rows: int, shares: int) -> bool:
    return rows > 0 and rows % shares == 0


def _next_batch_size(length: int, batch_size: int, shares: int) -> int:
    """The next number of tokens, a whole number of rows of some width, that all can share."""
    found, tried = batch_size, 0
    while found != tried:
        tried = found
        for width in widths_for(length):
            rows = found // width
            while not _can_share(rows_of_width(width, found), shares):
                rows += 1
                found = rows * width
    return found


def plan_training(
    chunks: Chunks, tokens_per_batch: int, rng: np.random.Generator
) -> list[PlannedBatch]:
    """All chunks in full batches, in random order.

    Where chunks are left over, a batch is filled up with some that are in another one, too.
    """
    widths, order = _widest_first(chunks, rng.permutation(len(chunks)))
    batches: list[PlannedBatch] = []
    for first, end, width in _cut(widths, tokens_per_batch):
        chosen = order[first:end]
        missing = rows_of_width(width, tokens_per_batch) - len(chosen)
        if missing:
            others = rng.permutation(order[end:] if end < len(order) else order)
            chosen = np.concatenate((chosen, np.resize(others, missing)))
        batches.append(PlannedBatch(rng.permutation(chosen), width))
    return [batches[n] for n in rng.permutation(len(batches))]


def plan_evaluation(chunks: Chunks, tokens_per_batch: int, world_size: int) -> list[PlannedBatch]:
    """Every chunk once; a row at least for every rank in every batch, if there are as many."""
    widths, order = _widest_first(chunks, np.arange(len(chunks)))
    cuts = _cut(widths, tokens_per_batch)
    if len(cuts) > 1 and cuts[0][1] < world_size:
        (_, _, width), (_, end, _) = cuts[:2]
        cuts[:2] = [(0, end, width)]
    return [PlannedBatch(order[first:end], width) for first, end, width in cuts]


def padding_share(chunks: Chunks, batches: Sequence[PlannedBatch]) -> float:
    """The part of all batches' tensors that is padding."""
    held = sum(int(chunks.lengths[:, batch.chunks].sum()) for batch in batches)
    return 1.0 - held / sum(2 * len(batch.chunks) * batch.width for batch in batches)


def _widest_first(chunks: Chunks, tie_order: Integers) -> tuple[list[int], Integers]:
    """The widths that the chunks need, falling, and the chunks in that order."""
    grid = np.array(widths_for(chunks.length))
    needed = grid[np.searchsorted(grid, chunks.lengths.max(axis=0))]
    order = tie_order[np.argsort(-needed[tie_order], kind="stable")]
    return needed[order].tolist(), order


def _cut(widths: list[int], tokens_per_batch: int) -> list[tuple[int, int, int]]:
    """Cuts chunks of falling width into batches: first chunk, end, and width of each.

    Each is full but the first, the widest. What is left over of a width goes with a wider one.
    """
    distinct = sorted(set(widths))
    cuts: list[tuple[int, int, int]] = []
    end = len(widths)
    while end > 0:
        width, rows = widths[0], max(1, rows_of_width(widths[0], tokens_per_batch))
        for narrower in distinct[bisect_left(distinct, widths[end - 1]) : -1]:
            more = max(1, rows_of_width(narrower, tokens_per_batch))
            if more <= end and widths[end - more] <= narrower:
                width, rows = narrower, more
                break
        cuts.append((max(0, end - rows), end, width))
        end -= rows
    return cuts[::-1]
