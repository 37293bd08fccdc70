"""Documents that are packed one after another, of which shards may hold parts."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from flashpoint.distributed.layout import Range


class Meeting(NamedTuple):
    """A document's queries and keys in two runs of tokens.

    Attributes:
        query, key: the first of each, in the whole sequence.
        positions, keys: both as the document counts them.
    """

    query: int
    key: int
    positions: Range
    keys: Range


class Documents(NamedTuple):
    """Where each one starts and ends in the whole sequence.

    Attributes:
        queries, keys: cu_seqlens: document i has the tokens from entry i up to entry i + 1.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]

    @property
    def num_scores(self) -> int:
        """Pairs of a query and a key of one document."""
        pairs = zip(pairwise(self.queries), pairwise(self.keys), strict=True)
        return sum((q1 - q0) * (k1 - k0) for (q0, q1), (k0, k1) in pairs)

    def meetings(self, queries: Range, keys: Range) -> Iterator[Meeting]:
        """Documents that have queries and keys in these runs, in their order."""
        i = max(bisect_right(self.queries, queries[0]) - 1, 0)
        while i < len(self.queries) - 1 and self.queries[i] < queries[1]:
            (q0, q1), (k0, k1) = self.queries[i : i + 2], self.keys[i : i + 2]
            offset = (k1 - k0) - (q1 - q0) - q0  # the last query stands at the last key
            first, last = max(q0, queries[0]), min(q1, queries[1])
            start, stop = max(k0, keys[0]), min(k1, keys[1])
            if first < last and start < stop:
                positions = (first + offset, last + offset)
                yield Meeting(first, start, positions, (start - k0, stop - k0))
            i += 1

    def places(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Each query's position in its document, and how many keys that has."""
        starts, ends = (
            torch.tensor([x[:-1], x[1:]], device=queries.device) for x in (self.queries, self.keys)
        )
        document = torch.searchsorted(starts[1], queries, right=True)
        num_queries, num_keys = ((x[1] - x[0])[document] for x in (starts, ends))
        return queries - starts[0][document] + num_keys - num_queries, num_keys


class Ends(NamedTuple):
    """Parts of documents one after another, as a call of their own has them: its cu_seqlens."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[Range, Range]]) -> "Ends":
        """Those of runs of queries and keys, the first from 0 on.

        Tokens between them are sequences too: of queries without keys, and of keys without
        queries.
        """
        queries, keys = [0], [0]

        def end(query: int, key: int) -> None:
            if (query, key) != (queries[-1], keys[-1]):
                queries.append(query)
                keys.append(key)

        for (first, last), (start, stop) in parts:
            end(first, keys[-1])
            end(first, start)
            end(last, stop)
        return cls(tuple(queries), tuple(keys))

    @property
    def longest(self) -> tuple[int, int]:
        """Queries and keys of the longest ones."""
        most_queries, most_keys = (
            max((b - a for a, b in pairwise(ends)), default=0) for ends in self
        )
        return most_queries, most_keys

    def tensors(self, device: torch.device) -> list[Tensor]:
        """cu_seqlens of queries and of keys, by one copy to the device."""
        return list(torch.tensor([self.queries, self.keys], dtype=torch.int32, device=device))
