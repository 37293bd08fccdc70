"""How many heads a causal launch for Hopper takes at a time, so that what it streams stays cached.

Tiles of rows come the longest first, over all heads, so that programs end together. Each tile
streams the columns of its head, keys and values in forward. Neighbours are tiles of other heads:
where the columns of all heads do not fit the cache, every tile reads its own from memory, and one
of 128 rows asks for more bytes than memory gives in the time of its products. So heads come in
sections whose columns fit, one section behind the other, each with its longest tiles first.

No Gluon here: tests count without a GPU.
"""

import functools
from typing import NamedTuple

FLOPS_PER_BYTE = 200.0  # products that hide a byte from memory: 790 TFLOP/s, 4.3 TB/s on an H200
CACHED = 1.5  # of the cache: columns of all heads that come often enough from there
SHARE = 0.6  # of the cache that a section's columns may take
MOST_TILES = 2**14  # up to which sections are compared; more of them even out
MOST_CHOICES = 12
START = 128  # columns that could be streamed while a tile starts and ends


class Launch(NamedTuple):
    """What a causal launch has to do.

    Attributes:
        heads: of its rows, those of all samples.
        group: of them share the columns of one head.
        row_tiles, rows: tiles of a head, and rows of each.
        columns: of a head.
        slack: rows that the first tile has before columns begin to be hidden.
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
        """Of a tile, where all its columns come from memory, in 16 bits, by two tensors."""
        return self.products * self.rows / 2

    def imbalance(self, near: int, processors: int) -> float:
        """Work of the program that has most over that of the mean, with so many heads at a time.

        Rounds alternate, as ``hopper.tiles.deal`` has it.
        """
        loads = [0] * min(processors, self.heads * self.row_tiles)
        number = 0
        for first in range(0, self.heads, near):
            for place in range(self.row_tiles):
                work = self.seen(place) + START
                for _ in range(min(near, self.heads - first)):
                    turn, program = divmod(number, len(loads))
                    loads[-1 - program if turn % 2 else program] += work
                    number += 1
        return max(loads) * len(loads) / sum(loads)


@functools.lru_cache(maxsize=1024)
def count_near(launch: Launch, processors: int, cache_bytes: int) -> int:
    """Heads of a section; all of them where sections would not gain.

    Example:
        >>> many = Launch(128, 1, 16, 128, 2048, 0, 2048 * 192 * 4, 2)
        >>> count_near(many, 132, 60 * 2**20), count_near(many._replace(heads=32), 132, 60 * 2**20)
        (22, 32)
    """
    whole = launch.heads // launch.group * launch.head_bytes
    most = int(SHARE * cache_bytes) // launch.head_bytes * launch.group
    held_up = FLOPS_PER_BYTE / launch.flops_per_byte
    if held_up <= 1.0 or whole <= CACHED * cache_bytes or not 0 < most < launch.heads:
        return launch.heads
    if launch.heads * launch.row_tiles > MOST_TILES:
        return most
    least = max(launch.group, most // 3 // launch.group * launch.group)
    step = -(-(most - least) // launch.group // MOST_CHOICES) * launch.group or launch.group
    found = {n: launch.imbalance(n, processors) for n in range(most, least - 1, -step)}
    near = min(found, key=found.__getitem__)
    return near if found[near] < held_up else launch.heads
