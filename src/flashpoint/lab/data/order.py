"""Which samples a batch holds: a pure function of the seed and the batch's number.

Samples are counted on from epoch to epoch: position p is sample p mod N of epoch p // N, and batch
t holds the positions from t * B to t * B + B - 1. Batches run across the borders of epochs, so
that every epoch has every sample exactly once and a batch may be larger than the set.
"""

from enum import IntEnum

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers, Source


class Purpose(IntEnum):
    """What random numbers are for: each purpose has a stream of its own."""

    ORDER = 1
    AUGMENTATION = 2
    MIXUP = 3


def generator(seed: int, purpose: Purpose, number: int) -> np.random.Generator:
    """Random numbers for one epoch, batch or position."""
    return np.random.default_rng((seed, int(purpose), number))


class EpochOrder:
    """The shuffled positions of a source; remembers the two epochs it was asked for last."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source = source
        self._seed = seed
        self._epochs: dict[int, Integers] = {}

    def samples(self, positions: Integers) -> Integers:
        """The numbers of the samples at these positions."""
        epochs, places = np.divmod(positions, self._source.num_samples)
        result = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            result[chosen] = self._epoch(int(epoch))[places[chosen]]
        return result

    def _epoch(self, epoch: int) -> Integers:
        if epoch not in self._epochs:
            self._epochs = {e: order for e, order in self._epochs.items() if e == epoch - 1}
            rng = generator(self._seed, Purpose.ORDER, epoch)
            self._epochs[epoch] = self._source.shuffle(rng)
        return self._epochs[epoch]


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a process that is none of those there are."""
    if not 0 <= rank < world_size:
        raise InputError(f"rank={rank} must lie in [0, world_size={world_size}).")


def rank_positions(
    step: int, batch_size: int, rank: int, world_size: int, *, with_neighbor: bool
) -> Integers:
    """The positions of one rank in a global batch: the rank's slice of it.

    With a neighbor, the position before the slice comes last: mixup's partner of its first
    sample, which on one rank is found by rolling the batch.

    Example:
        >>> rank_positions(2, 8, 1, 2, with_neighbor=True).tolist()
        [20, 21, 22, 23, 19]
    """
    share = batch_size // world_size
    places = np.arange(rank * share, (rank + 1) * share, dtype=np.int64)
    if with_neighbor:
        places = np.append(places, (rank * share - 1) % batch_size)
    return step * batch_size + places
