"""What a model remembers while it writes a translation token by token."""

from typing import NamedTuple

from torch import Tensor

from flashpoint.layers.cache import KeyValueCache
from flashpoint.shapes import Float, Int


class BlockCaches(NamedTuple):
    """What a decoder's block remembers: its own tokens, and the source."""

    own: KeyValueCache
    source: KeyValueCache


class DecodingState:
    """How far decoding has come: N hypotheses, the same number of each of B sources.

    Attributes:
        encoded, source_lengths: the sources.
        caches: of every block of the decoder.
        num_tokens: decoded so far.
    """

    def __init__(
        self,
        encoded: Float[Tensor, "B Ls E"],
        source_lengths: Int[Tensor, " B"] | None,
        num_blocks: int,
    ) -> None:
        self.encoded, self.source_lengths = encoded, source_lengths
        self.caches = [BlockCaches(KeyValueCache(), KeyValueCache()) for _ in range(num_blocks)]
        self.num_tokens = 0

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Continue with these hypotheses; each must be one of the same source."""
        for caches in self.caches:
            caches.own.select(rows)
