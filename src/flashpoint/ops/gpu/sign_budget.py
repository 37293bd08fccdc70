"""How many heads may store the signs of their scores at a time, and whether that pays.

What signs are: ``hopper/backward/signs.py``. No Gluon here: ``dispatch`` asks too.
"""

from typing import NamedTuple

TILE = 128  # queries and keys: the words of a head are those of whole tiles
MOST_WORDS = 2**26  # of signs at a time: 256 MB, one head of 46,000 tokens


def count_words(num_queries: int, num_keys: int) -> int:
    """Words of one head of q."""
    q_tiles, k_tiles = -(-num_queries // TILE), -(-num_keys // TILE)
    return q_tiles * k_tiles * (TILE * TILE // 32)


def count_heads(group: int, num_queries: int, num_keys: int) -> int:
    """Key heads whose signs fit at a time, with all ``group`` query heads of each."""
    return MOST_WORDS // max(group * count_words(num_queries, num_keys), 1)


class Work(NamedTuple):
    """A backward's size: key heads, the query heads that share one, lengths, and processors.

    Time is counted in whole rounds of tiles, by products. A launch counts as an eighth of a round.
    """

    heads: int
    group: int
    num_queries: int
    num_keys: int
    processors: int

    def split(self, most: int) -> int:
        """Key heads per launch that store signs, at most ``most``: those of the least time."""
        return min(range(1, min(most, self.heads) + 1), key=self._time_with_signs)

    def gains_by(self, per_launch: int) -> bool:
        """True where signs of so many heads at a time beat scores made again, of all at once.

        A launch of few heads may have too few tiles of keys for the processors.
        """
        return self._time_with_signs(per_launch) < self._time(self.heads, products=3)

    def _time_with_signs(self, per_launch: int) -> float:
        whole, rest = divmod(self.heads, per_launch)
        return whole * self._time(per_launch) + (self._time(rest) if rest else 0.0)

    def _time(self, count: int, products: int = 2) -> float:
        """Of so many heads in one launch for each side; ``products`` are the queries' side's."""
        keys_side = self._rounds(count * -(-self.num_keys // TILE)) * 4
        queries_side = self._rounds(count * self.group * -(-self.num_queries // TILE)) * products
        return keys_side * self.group * self.num_queries + queries_side * self.num_keys

    def _rounds(self, tiles: int) -> float:
        return -(-tiles // self.processors) + 0.125
