"""Which chunks make a batch: of similar length, as many as a number of tokens allows.

Batches come in few shapes: source and target are equally wide, widths are 32, or 64 times 1, 2, 3,
4, 6, 8, 12, 16, ..., and a width settles the number of rows. So kernels and graphs that were made
for one batch serve others. Single segments are shorter than documents: their widths are a quarter
of these, or half of every batch would be padding.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.text.chunks import Chunks
from flashpoint.lab.data.text.config import DocumentConfig

WIDTH_MULTIPLE = {"documents": 64, "segments": 16}
ROW_MULTIPLE = 8
_TRIES = 4096  # sizes, before it is said that there is none
_TRY = 32  # tokens between two of them


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


def widths_of(config: DocumentConfig) -> list[int]:
    """All widths that batches of a config's samples may have, rising."""
    return widths_for(config.length, WIDTH_MULTIPLE[config.samples])


def widths_for(length: int, multiple: int = WIDTH_MULTIPLE["documents"]) -> list[int]:
    """All widths that batches of chunks up to a length may have, rising.

    Args:
        length: of the longest.
        multiple: the narrowest width is half of it, all others are multiples of it.

    Example:
        >>> widths_for(500), widths_for(100, 16)
        ([32, 64, 128, 192, 256, 384, 512], [8, 16, 32, 48, 64, 96, 112])
    """
    if length <= multiple // 2:
        return [multiple // 2]
    widest = -(-length // multiple) * multiple
    widths = [multiple // 2, multiple, 2 * multiple, 3 * multiple]
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


def check_rows(
    widths: Sequence[int], batch_size: int, num_processes: int, num_parts: int = 1
) -> None:
    """Refuse a number of tokens a batch whose rows cannot be shared out evenly.

    Args:
        widths: of batches.
        batch_size: tokens that a batch has room for.
        num_processes: that share a batch.
        num_parts: that each of them cuts its share into.
    """
    shares = num_processes * num_parts
    for width in widths:
        rows = rows_of_width(width, batch_size)
        if not _can_share(rows, shares):
            raise InputError(
                f"batch_size={batch_size} has room for {rows} rows of {width} tokens (from "
                f"{ROW_MULTIPLE} on by {ROW_MULTIPLE}s), which {num_processes} processes x "
                f"{num_parts} parts must share evenly, a row each at least. The next larger that "
                f"works with rows of up to {widths[-1]} tokens is batch_size="
                f"{_next_batch_size(widths, batch_size, shares)}."
            )


def largest_batch_size(widths: Sequence[int], most: int, shares: int) -> int:
    """The largest number of tokens up to ``most`` whose rows can be shared out; 0 for none.

    Example:
        >>> widths = widths_for(512)
        >>> largest_batch_size(widths, 5000, 1), largest_batch_size(widths, 50_000, 3)
        (5000, 37088)
    """
    lowest = max(0, most - _TRIES * _TRY)
    for size in (most, *range(most - most % _TRY, lowest, -_TRY)):
        if all(_can_share(rows_of_width(width, size), shares) for width in widths):
            return size
    return 0


def _can_share(rows: int, shares: int) -> bool:
    return rows > 0 and rows % shares == 0


def _next_batch_size(widths: Sequence[int], batch_size: int, shares: int) -> int:
    """The next number of tokens, a whole number of rows of some width, that all can share."""
    found, tried = batch_size, 0
    while found != tried:
        tried = found
        for width in widths:
            rows = found // width
            while not _can_share(rows_of_width(width, found), shares):
                rows += 1
                found = rows * width
    return found


def plan_training(
    chunks: Chunks, grid: Sequence[int], tokens_per_batch: int, rng: np.random.Generator
) -> list[PlannedBatch]:
    """All chunks in full batches, in random order.

    Where chunks are left over, a batch is filled up with some that are in another one, too.
    """
    widths, order = _widest_first(chunks, grid, rng.permutation(len(chunks)))
    batches: list[PlannedBatch] = []
    for first, end, width in _cut(widths, tokens_per_batch):
        chosen = order[first:end]
        missing = rows_of_width(width, tokens_per_batch) - len(chosen)
        if missing:
            others = rng.permutation(order[end:] if end < len(order) else order)
            chosen = np.concatenate((chosen, np.resize(others, missing)))
        batches.append(PlannedBatch(rng.permutation(chosen), width))
    return [batches[n] for n in rng.permutation(len(batches))]


def plan_evaluation(
    chunks: Chunks, grid: Sequence[int], tokens_per_batch: int, world_size: int
) -> list[PlannedBatch]:
    """Every chunk once; a row at least for every rank in every batch, if there are as many."""
    widths, order = _widest_first(chunks, grid, np.arange(len(chunks)))
    cuts = _cut(widths, tokens_per_batch)
    if len(cuts) > 1 and cuts[0][1] < world_size:
        (_, _, width), (_, end, _) = cuts[:2]
        cuts[:2] = [(0, end, width)]
    return [PlannedBatch(order[first:end], width) for first, end, width in cuts]


def padding_share(chunks: Chunks, batches: Sequence[PlannedBatch]) -> float:
    """The part of all batches' tensors that is padding."""
    held = sum(int(chunks.lengths[:, batch.chunks].sum()) for batch in batches)
    return 1.0 - held / sum(2 * len(batch.chunks) * batch.width for batch in batches)


def _widest_first(
    chunks: Chunks, grid: Sequence[int], tie_order: Integers
) -> tuple[list[int], Integers]:
    """The widths of a grid that the chunks need, falling, and the chunks in that order."""
    needed = np.array(grid)[np.searchsorted(grid, chunks.lengths.max(axis=0))]
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
