"""How many heads a causal launch for Hopper takes at a time, so that what it streams stays cached.

Tiles of rows come the longest first, over all heads, so that programs end together. Each tile
streams the columns of its head, keys and values in forward. Tiles that run together are of
different heads: where the columns of all heads do not fit the cache, every tile reads its own from
memory, and one of 128 rows asks for more bytes than memory gives in the time of its products. So
heads come in sections whose columns fit, one section behind the other, each with its longest tiles
first.

No Gluon here: tests count without a GPU.
"""

import functools
from typing import NamedTuple

import torch

FLOPS_PER_BYTE = 184.0  # of products for a byte from memory: 790 TFLOP/s, 4.3 TB/s on an H200
CACHED = 1.5  # of the cache: columns of all heads that come often enough from there
SHARE = 0.6  # of the cache that a section's columns may take
MOST_CHOICES = 12
START = 128  # columns that could be streamed while a tile starts and ends


class CausalWork(NamedTuple):
    """What a causal launch has to do.

    Attributes:
        heads: of its rows, over all samples.
        group: how many heads of rows share the columns of one head.
        row_tiles, rows: tiles of a head, and rows of each.
        columns: of a head.
        slack: rows of the first tiles that see all columns, beyond the first row.
        head_bytes: of the columns of one head.
        products: of matrices, for each pair of row and column.
    """

    heads: int
    group: int
    row_tiles: int
    rows: int
    columns: int
    slack: int
    head_bytes: int
    products: int

    def seen(self, place: int) -> int:
        """Columns that a head's place-th tile sees, the longest being number 0."""
        return max(0, self.columns - max(0, place * self.rows - self.slack))

    @property
    def flops_per_byte(self) -> float:
        """Of a tile whose columns, two tensors of 16 bits, all come from memory."""
        return self.products * self.rows / 2

    def imbalance(self, section: int, processors: int) -> float:
        """Work of the program that has most over that of the mean, with sections of so many heads.

        Rounds alternate, as ``hopper.tiles.deal`` has it, so that a program has two places in
        every two rounds. Tiles of one length follow each other: a run of them is a range of
        places, and some whole cycles.
        """
        programs = min(processors, self.heads * self.row_tiles)
        cycle = 2 * programs
        work = _whole([self.seen(place) + START for place in range(self.row_tiles)])
        first = _whole(list(range(0, self.heads, section)))[:, None]
        here = (self.heads - first).clamp(max=section)
        begin = (first * self.row_tiles + here * _whole(list(range(self.row_tiles)))) % cycle
        end = begin + here % cycle
        work = work.expand_as(begin)
        steps = torch.zeros(2 * cycle + 1, dtype=torch.int64, device="cpu")
        steps.index_add_(0, begin.flatten(), work.flatten())
        steps.index_add_(0, end.flatten(), -work.flatten())
        loads = steps[:-1].cumsum(0).view(2, cycle).sum(0) + (here // cycle * work).sum()
        loads = loads[:programs] + loads[programs:].flip(0)
        return loads.max().item() * programs / loads.sum().item()


def _whole(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


@functools.lru_cache(maxsize=4096)
def size_section(work: CausalWork, processors: int, cache_bytes: int) -> int | None:
    """Heads of a section; None where sections would not gain: then all heads come at once.

    Example:
        >>> many = CausalWork(128, 1, 16, 128, 2048, 0, 2048 * 192 * 4, 2)
        >>> few, cache = many._replace(heads=32), 60 * 2**20
        >>> size_section(many, 132, cache), size_section(few, 132, cache)
        (22, None)
    """
    whole = work.heads // work.group * work.head_bytes
    most = int(SHARE * cache_bytes) // work.head_bytes * work.group
    held_up = FLOPS_PER_BYTE / work.flops_per_byte
    if held_up <= 1.0 or whole <= CACHED * cache_bytes or not 0 < most < work.heads:
        return None
    least = max(work.group, most // 3 // work.group * work.group)
    step = -(-(most - least) // work.group // MOST_CHOICES) * work.group or work.group
    found = {n: work.imbalance(n, processors) for n in range(most, least - 1, -step)}
    section = min(found, key=found.__getitem__)
    return section if found[section] < held_up else None
