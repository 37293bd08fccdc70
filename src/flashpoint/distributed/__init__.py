"""Attention over a sequence that lies on several ranks, by torch.distributed alone."""

from flashpoint.distributed.layout import shard, unshard
from flashpoint.distributed.measuring import measure_rates
from flashpoint.distributed.sequence import SequenceParallel, sequence_parallel
from flashpoint.distributed.strategy import Choice, Rates

__all__ = [
    "Choice",
    "Rates",
    "SequenceParallel",
    "measure_rates",
    "sequence_parallel",
    "shard",
    "unshard",
]
