"""Unreadable images: counted, named, and past a share the end of the run."""

from collections.abc import Iterable, Sequence

from flashpoint.data.source import Source
from flashpoint.errors import InputError

MIN_SEEN = 100
MAX_NAMES = 1000


class BrokenLog:
    """What could not be read so far, and the limit.

    Attributes:
        seen: samples asked for.
        count: how many of them were broken.
        names: where they lie and why, each once, at most 1,000; damaged shards come first.
    """

    def __init__(self, source: Source, max_share: float) -> None:
        self._source = source.name
        self._max_share = max_share
        self.seen = 0
        self.count = 0
        self.names: list[str] = list(source.damage[:MAX_NAMES])
        if source.lost_share > max_share:
            raise InputError(
                f"{len(source.damage)} shards of {source.name} are damaged and about "
                f"{source.lost_share:.2%} of its samples lost, more than max_broken_share="
                f"{max_share:.2%}: {_first(source.damage)}. Repair them, or raise the limit."
            )

    def add(self, num_seen: int, names: Iterable[str]) -> None:
        """Count samples and the broken ones among them; InputError past the limit."""
        known = set(self.names)
        self.seen += num_seen
        for name in names:
            self.count += 1
            if name not in known and len(self.names) < MAX_NAMES:
                known.add(name)
                self.names.append(name)
        if self.seen >= MIN_SEEN and self.count > self._max_share * self.seen:
            raise InputError(
                f"{self.count} of {self.seen} images of {self._source} ({self.share:.2%}) cannot "
                f"be read, more than max_broken_share={self._max_share:.2%}: "
                f"{_first(self.names)}. Repair or remove them, or raise the limit."
            )

    @property
    def share(self) -> float:
        """Broken samples among those seen."""
        return self.count / self.seen if self.seen else 0.0


def _first(names: Sequence[str], count: int = 3) -> str:
    """The first few of many."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return "; ".join(names[:count]) + more
