"""How one attention is cut into tiles: groups of heads, ranges of queries, ranges of keys.

A tile's scores are one batched product, [heads, rows, keys]. Query heads that share a key head are
stacked as rows: grouped queries need no copy of k, and their dk and dv add up by themselves.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashpoint.ops.check import read_key_lengths
from flashpoint.ops.spec import Terms

ROWS = 512  # queries of all stacked heads in a tile
KEYS = 1024  # in a tile of a two-byte dtype; wider ones get fewer
AREA_PER_THREAD = 2**18  # scores that a thread works on between two barriers, for short sequences
LARGEST_AREA = 2**22  # scores in a tile: 16 MB in fp32, whatever the number of threads


class Group(NamedTuple):
    """Heads that are computed together: all heads of some samples, or some heads of one."""

    batch: slice
    kv_heads: slice
    q_heads: slice
    samples: int
    heads: int  # key heads of one sample in the group

    @property
    def size(self) -> int:
        """How many matrices the group's batched products have."""
        return self.samples * self.heads


class Tile(NamedTuple):
    """Queries [i0, i1) against keys [j0, j1)."""

    i0: int
    i1: int
    j0: int
    j1: int


class Plan:
    """The tiles of one call, and which keys its queries see.

    Args:
        q, k: as the operator gets them.
        key_lengths: how many keys exist, a number for each sample; None when all do.
        terms: the call's options.
        width: of a score, in units of two bytes.
        is_backward: two tiles are at work at a time, not one.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        key_lengths: Tensor | None,
        terms: Terms,
        width: int,
        is_backward: bool,
    ) -> None:
        self.num_samples, q_heads, self.num_queries, _ = q.shape
        self.num_heads, self.num_keys = k.shape[1], k.shape[2]
        self.stack = max(1, q_heads // max(1, self.num_heads))
        self.is_empty = q.numel() == 0 or k.numel() == 0
        self.key_lengths = None
        if key_lengths is not None:
            self.key_lengths = read_key_lengths(key_lengths, self.num_keys)
        self.left, self.right = terms.left, terms.right
        self.shift = self.num_keys - self.num_queries
        rows = ROWS // width if is_backward else ROWS
        self.tile_queries = max(1, min(self.num_queries, rows // self.stack))
        self.tile_keys = max(1, min(self.num_keys, KEYS // width))
        self.group_size = self._group_size()

    def _group_size(self) -> int:
        """Enough heads to feed every thread, not so many that the tile leaves the caches."""
        area = self.stack * self.tile_queries * self.tile_keys
        threads = torch.get_num_threads()
        wanted = max(2 * threads, threads * (AREA_PER_THREAD // area))
        return max(1, min(wanted, LARGEST_AREA // area))

    @property
    def area(self) -> int:
        """Scores in the largest tile."""
        per_head = self.stack * self.tile_queries * self.tile_keys
        return per_head * min(self.group_size, self.num_samples * self.num_heads)

    @property
    def has_one_tile(self) -> bool:
        """True where all queries and keys of a group make one tile."""
        return self.tile_queries == self.num_queries and self.tile_keys == self.num_keys

    def groups(self) -> Iterator[Group]:
        """All heads, in groups; one sample at a time where samples differ in their keys."""
        heads = min(self.num_heads, self.group_size)
        samples = self.group_size // heads if heads == self.num_heads else 1
        samples = 1 if self.key_lengths is not None else min(samples, self.num_samples)
        for b in range(0, self.num_samples, samples):
            b_end = min(b + samples, self.num_samples)
            for h in range(0, self.num_heads, heads):
                h_end = min(h + heads, self.num_heads)
                yield Group(
                    slice(b, b_end),
                    slice(h, h_end),
                    slice(h * self.stack, h_end * self.stack),
                    b_end - b,
                    h_end - h,
                )

    def existing_keys(self, group: Group) -> int:
        """Keys that exist for the group's samples."""
        return self.num_keys if self.key_lengths is None else self.key_lengths[group.batch.start]

    def query_ranges(self) -> Iterator[tuple[int, int]]:
        """All queries, in ranges that fit a tile."""
        return _ranges(0, self.num_queries, self.tile_queries)

    def tiles_of_queries(self, group: Group, i0: int, i1: int) -> Iterator[Tile]:
        """The tiles with a key that some query of [i0, i1) sees."""
        start = 0 if self.left is None else max(0, i0 + self.shift - self.left)
        end = self.existing_keys(group)
        if self.right is not None:
            end = min(end, i1 + self.shift + self.right)
        for j0, j1 in _ranges(start, end, self.tile_keys):
            yield Tile(i0, i1, j0, j1)

    def tiles_of_keys(self, j0: int, j1: int) -> Iterator[Tile]:
        """The tiles with a query that sees some key of [j0, j1), cut as ``query_ranges`` does."""
        start = 0 if self.right is None else max(0, j0 - self.right - self.shift)
        start -= start % self.tile_queries
        end = self.num_queries
        if self.left is not None:
            end = min(end, j1 + self.left - self.shift)
        for i0, _ in _ranges(start, end, self.tile_queries):
            yield Tile(i0, min(i0 + self.tile_queries, self.num_queries), j0, j1)

    def key_ranges(self, group: Group) -> Iterator[tuple[int, int]]:
        """The keys that exist for the group's samples, in ranges that fit a tile."""
        return _ranges(0, self.existing_keys(group), self.tile_keys)

    def window(self, tile: Tile) -> Tensor | None:
        """[queries, keys] booleans: who sees whom in the tile. None where all see all."""
        first, last = tile.i0 + self.shift, tile.i1 - 1 + self.shift
        cut_left = self.left is not None and tile.j0 < last - self.left
        cut_right = self.right is not None and tile.j1 - 1 > first + self.right
        if not (cut_left or cut_right):
            return None
        position = torch.arange(first, last + 1).unsqueeze(1)
        key = torch.arange(tile.j0, tile.j1)
        seen = torch.ones(tile.i1 - tile.i0, tile.j1 - tile.j0, dtype=torch.bool)
        if self.left is not None:
            seen &= key >= position - self.left
        if self.right is not None:
            seen &= key <= position + self.right
        return seen

    def count_seen(self, group: Group, i0: int, i1: int) -> int | Tensor:
        """How many keys each query of [i0, i1) has in its window: a number or [1, 1, rows, 1]."""
        existing = self.existing_keys(group)
        if self.left is None and self.right is None:
            return existing
        position = torch.arange(i0, i1).unsqueeze(1) + self.shift
        first, last = torch.tensor(0), torch.tensor(existing - 1)
        if self.left is not None:
            first = (position - self.left).clamp(min=0)
        if self.right is not None:
            last = (position + self.right).clamp(max=existing - 1)
        return (last - first + 1).clamp(min=0)[None, None]

    def take_queries(self, x: Tensor, group: Group, i0: int, i1: int) -> Tensor:
        """The group's rows [i0, i1) of [B, Hq, Lq, *] as matrices [size, stacked rows, *]."""
        if i1 - i0 != self.num_queries:
            x = x[group.batch, group.q_heads, i0:i1]
        elif group.samples != self.num_samples or group.heads != self.num_heads:
            x = x[group.batch, group.q_heads]
        return x.reshape(group.size, self.stack * (i1 - i0), x.shape[-1])

    def take_keys(self, x: Tensor, group: Group, j0: int, j1: int) -> Tensor:
        """The group's rows [j0, j1) of [B, Hkv, Lk, *] as matrices [size, keys, *]."""
        if j1 - j0 != self.num_keys:
            x = x[group.batch, group.kv_heads, j0:j1]
        elif group.samples != self.num_samples or group.heads != self.num_heads:
            x = x[group.batch, group.kv_heads]
        return x.reshape(group.size, j1 - j0, x.shape[-1])

    def take_scores(self, x: Tensor, group: Group, tile: Tile) -> Tensor:
        """The tile of a tensor that broadcasts to [B, Hq, Lq, Lk], as [B, Hkv, stack, Lq, Lk]."""
        x = x[group.batch] if x.shape[0] > 1 else x
        x = x[:, group.q_heads] if x.shape[1] > 1 else x
        x = x[:, :, tile.i0 : tile.i1] if x.shape[2] > 1 else x
        x = x[..., tile.j0 : tile.j1] if x.shape[3] > 1 else x
        return x.unsqueeze(2) if x.shape[1] == 1 else x.unflatten(1, (group.heads, self.stack))


def _ranges(start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    for at in range(start, end, step):
        yield at, min(at + step, end)
