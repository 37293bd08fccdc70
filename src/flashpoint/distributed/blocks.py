"""Some queries over some keys, both somewhere in longer sequences.

A query at position p sees the keys p - left <= j <= p + right. In a call of its own a block has
other positions: its last query stands at its last key. With queries [p0, p1) and keys [c, d) that
moves them by p1 - d, and the window with them. Queries and keys that see nothing of one another
are cut off first; what is left has a window of its own that reaches to no negative side.

Parts of packed documents that need the same window are one block, a call over sequences of
different lengths.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.documents import Documents, Ends
from flashpoint.distributed.layout import Range, Shards


class Block(NamedTuple):
    """Queries and keys that see one another.

    Attributes:
        rows, columns: where they lie in the tensors given.
        keys: the runs of the whole sequence that ``columns`` are.
        left, right: the window as the block's own call has it.
        ends: of the documents in it; None where it is one sequence.
    """

    rows: slice
    columns: slice
    keys: tuple[Range, ...]
    left: int | None
    right: int | None
    ends: Ends | None = None

    def lengths(self, call: ShardedCall) -> Tensor | None:
        """How many of the block's keys exist in every sample."""
        if call.key_lengths is None:
            return None
        ((first, last),) = self.keys
        return (call.key_lengths - first).clamp(0, last - first)


def blocks_of(
    queries: Sequence[Range], keys: Sequence[Range], call: ShardedCall
) -> Iterator[Block]:
    """Pairs of runs of queries and keys of which somebody sees something."""
    num_queries, num_keys = (sum(stop - start for start, stop in x) for x in (queries, keys))
    left, right = call.terms.left, call.terms.right
    whole = Block(slice(0, num_queries), slice(0, num_keys), tuple(keys), left, right)
    if not (num_queries and num_keys):
        return
    if call.documents is not None and (num_queries, num_keys) == call.totals:
        yield whole._replace(ends=Ends(*call.documents))
        return
    if left is right is call.key_lengths is call.documents is None:
        yield whole  # order does not matter
        return
    row = 0
    for start, stop in queries:
        column = 0
        for first, last in keys:
            for block in _between((start, stop), (first, last), call):
                yield block._replace(
                    rows=_moved(block.rows, row), columns=_moved(block.columns, column)
                )
            column += last - first
        row += stop - start


def _between(queries: Range, keys: Range, call: ShardedCall) -> Iterator[Block]:
    """Blocks of a run of queries and a run of keys; rows and columns count from their first."""
    left, right = call.terms.left, call.terms.right
    if call.documents is None:
        start, stop = queries
        block = _meet((start + call.offset, stop + call.offset), keys, left, right)
        yield from () if block is None else (block,)
        return
    parts: dict[tuple[int | None, int | None], list[tuple[Range, Range]]] = {}
    for meeting in call.documents.meetings(queries, keys):
        block = _meet(meeting.positions, meeting.keys, left, right)
        if block is None:
            continue
        rows = _moved(block.rows, meeting.query - queries[0])
        columns = _moved(block.columns, meeting.key - keys[0])
        last_query = meeting.positions[0] + block.rows.stop
        moved = last_query - meeting.keys[0] - block.columns.stop
        window = (None if left is None else left - moved, None if right is None else right + moved)
        found = ((rows.start, rows.stop), (columns.start, columns.stop))
        parts.setdefault(window, []).append(found)
    for window, found in parts.items():
        yield _join(found, window)


def _join(parts: Sequence[tuple[Range, Range]], window: tuple[int | None, int | None]) -> Block:
    """Parts of documents, in their order, that have the same window, as one block."""
    (row, _), (column, _) = parts[0]
    (_, last_row), (_, last_column) = parts[-1]
    moved = [((a - row, b - row), (c - column, d - column)) for (a, b), (c, d) in parts]
    rows, columns = slice(row, last_row), slice(column, last_column)
    return Block(rows, columns, (), *window, Ends.of(moved))


def who_sees(call: ShardedCall) -> tuple[tuple[bool, ...], ...]:
    """By rank of queries and rank of keys, whether anybody sees anything."""
    window = (call.terms.left, call.terms.right)
    return _who_sees(call.queries, call.keys, call.offset, *window, call.documents)


@functools.lru_cache(maxsize=64)
def _who_sees(
    queries: Shards,
    keys: Shards,
    offset: int,
    left: int | None,
    right: int | None,
    documents: Documents | None,
) -> tuple[tuple[bool, ...], ...]:
    def meetings(run: Range, held: Range) -> Iterator[tuple[Range, Range]]:
        if documents is None:
            yield (run[0] + offset, run[1] + offset), held
            return
        for meeting in documents.meetings(run, held):
            yield meeting.positions, meeting.keys

    def sees(mine: Sequence[Range], theirs: Sequence[Range]) -> bool:
        return any(
            _meet(*meeting, left, right) is not None
            for run in mine
            for held in theirs
            for meeting in meetings(run, held)
        )

    return tuple(tuple(sees(mine, theirs) for theirs in keys.ranges) for mine in queries.ranges)


def _moved(x: slice, by: int) -> slice:
    return slice(x.start + by, x.stop + by)


def _meet(positions: Range, keys: Range, left: int | None, right: int | None) -> Block | None:
    """The part of both that see one another, counted from their first; None if nobody does."""
    (p0, p1), (c, d) = positions, keys
    stop = d if right is None else min(d, p1 + right)
    start = c if left is None else max(c, p0 - left)
    lowest = p0 if right is None else max(p0, start - right)
    highest = p1 if left is None else min(p1, stop + left)
    if start >= stop or lowest >= highest:
        return None
    moved = highest - stop
    if right is not None:
        right = None if lowest + right >= stop - 1 else right + moved
    if left is not None:
        left = None if highest - 1 - left <= start else left - moved
    rows, columns = slice(lowest - p0, highest - p0), slice(start - c, stop - c)
    return Block(rows, columns, ((start, stop),), left, right)
