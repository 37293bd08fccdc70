"""Unreadable images: counted, named, and past a share the end of the run."""

from collections.abc import Callable, Sequence

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Source

MIN_SEEN = 100
EARLY_SHARE = 0.5
MAX_NAMES = 1000

Noted = tuple[int, list[str]]
"""Samples seen, and the broken ones among them."""
Gather = Callable[[Noted], list[Noted]]
"""Every rank's, from every rank's own."""


class BrokenLog:
    """What could not be read so far, and the limit.

    From 100 samples on the run ends when more are broken than ``max_share`` of all epochs begun:
    chance decides when broken samples come, not how many an epoch has. In a random order the run
    also ends when more than half of those seen are broken: then the set is no set of images.
    Several ranks that each read a part note what they see, and count it together in ``share``.

    Args:
        source: of the samples.
        max_share: the limit, a share of an epoch.
        is_shuffled: whether samples come in a random order.
        num_ranks: that read a part each.

    Attributes:
        seen: samples asked for, by all ranks.
        count: how many of them were broken.
        names: where they lie and why, each once, at most 1,000; damaged shards come first.
    """

    def __init__(
        self, source: Source, max_share: float, *, is_shuffled: bool, num_ranks: int = 1
    ) -> None:
        self._source = source.name
        self._max_share = max_share
        self._num_ranks = num_ranks
        self._num_noted, self._noted = 0, list[str]()
        self._damage = _damage(source)
        self._first = ""
        self._epoch = source.num_samples
        self._early_share = max(EARLY_SHARE, max_share) if is_shuffled else 1.0
        self.seen = 0
        self.count = 0
        self.names: list[str] = list(source.damage[:MAX_NAMES])
        if source.lost_share > max_share:
            raise InputError(
                f"{self._damage}, more than max_broken_share={max_share:.2%}: "
                f"{_first(source.damage)}. Repair them, or raise the limit."
            )

    def add(self, num_seen: int, names: Sequence[str]) -> None:
        """Count samples and the broken ones among them; InputError past the limit.

        Where ranks read a part each, this waits for ``share``.
        """
        if self._num_ranks == 1:
            self._count(num_seen, names)
        else:
            self._num_noted += num_seen
            self._noted += names

    def share(self, gather: Gather) -> None:
        """Count what the ranks noted since the last time; all call it, all get the InputError."""
        if self._num_ranks > 1:
            parts = gather((self._num_noted, self._noted))
            self._num_noted, self._noted = 0, []
            names = [name for _, noted in parts for name in noted]
            self._count(sum(seen for seen, _ in parts), names)

    def resume(self, seen: int, count: int) -> None:
        """Go on from an earlier process' counts; its names are not known."""
        self.seen, self.count = seen, count

    def _count(self, num_seen: int, names: Sequence[str]) -> None:
        known = set(self.names)
        self._first = self._first or next(iter(names), "")
        self.seen += num_seen
        for name in names:
            self.count += 1
            if name not in known and len(self.names) < MAX_NAMES:
                known.add(name)
                self.names.append(name)
        if self.seen >= MIN_SEEN:
            self._check()

    def _check(self) -> None:
        """InputError if too many are broken."""
        epochs = -(-self.seen // self._epoch)
        total = epochs * self._epoch
        if self.count > self._max_share * total:
            base = f"the {total} of {epochs} epochs" if epochs > 1 else f"the {total} of an epoch"
            limit = f"max_broken_share={self._max_share:.2%} of {base}"
        elif self.count > self._early_share * self.seen:
            limit = f"{self._early_share:.2%} of them"
        else:
            return
        raise InputError(
            f"{self.count} of the {self.seen} images of {self._source} seen so far "
            f"({self.broken_share:.2%}) cannot be read, more than {limit}: {_first(self.names)}. "
            "Repair or remove them, or raise the limit."
        )

    @property
    def broken_share(self) -> float:
        """Broken samples among those seen."""
        return self.count / self.seen if self.seen else 0.0

    @property
    def summary(self) -> str:
        """What is wrong so far, in one line; nothing if all could be read."""
        parts: list[str] = []
        if self._damage:
            parts.append(f"{self._damage}, first {self.names[0]}")
        if self.count:
            parts.append(
                f"{self.count} of the {self.seen} images of {self._source} seen so far cannot be "
                f"read and were replaced, first {self._first or 'in an earlier start'}"
            )
        return "; ".join(parts)


def _damage(source: Source) -> str:
    """How many shards of a source are damaged, and what that costs; nothing if none is."""
    if not source.damage:
        return ""
    return (
        f"{len(source.damage)} shards of {source.name} are damaged and about "
        f"{source.lost_share:.2%} of its samples lost"
    )


def _first(names: Sequence[str], count: int = 3) -> str:
    """The first few of many."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return "; ".join(names[:count]) + more
