"""From numbers of several seeds to a verdict, by a rule that is stated and not bent.

The rule: a claim says in which region a quantity lies. Seeds are drawn again with replacement,
group by group, and the quantity is computed from each draw; the interval holds the middle 95% of
them. The verdict is "supports" where the whole interval lies in the region, "contradicts" where
none of it does, else "undecided". It is "undecided" too where a group has fewer than three seeds,
which give no interval, and where the number of any run is not finite: a run that diverges is a
result, so it is counted and said, and the mean of those that are left is not judged. An accuracy
or BLEU is finite whatever became of the run, as what is not finite guesses nothing, and counts.
A run that failed is none: the machine, not the claim, took it, and it can be done again. What is
left is judged as fewer seeds are, and the note says how many runs failed.

A plain bootstrap of three seeds is too narrow: its draws have (n - 1) / n of the variance, and
know that from two differences only. So deviations of a group's mean are widened by
sqrt(n / (n - 1)), and by sqrt(f / chi2_f) with Welch's f degrees of freedom: of normal numbers
that makes Student's t. From three seeds on 93 to 97% of intervals then hold the truth, groups that
spread unlike included; of the plain ones, 79%.

Some claims are about an extreme: "at every size" is about the least of m differences. Draws of an
extreme are no guide to it: where places are level, the largest of m noisy means lies above the
largest true one, and draws of it higher still (of five level pairs with three seeds, 7 in 10 such
intervals lie wholly above the truth). So every place has its own interval, and the extreme's is
made of their ends. That of the least goes
- from the lowest low end. It is above the truth only if that of the least place is, so low ends
  are as ever: 2.5% of them are too high.
- to the lowest high end, which is below the truth if any of m is; so of each 2.5% / m may be.
Both hold however places depend on each other, and the most is the mirror image. With "supports",
every place's interval lies in the region; with "contradicts", that of some place lies outside even
at the level 1 - 5% / m. As nothing but the bounds on both errors is used, an extreme may be taken
of extremes, and a distance from 0 is the most of a quantity and its negative.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from flashpoint.lab.runs.findings import Verdict, Word

LEVEL = 0.95
TAIL = (1.0 - LEVEL) / 2
RESAMPLES = 10_000
LEAST_BEYOND = 10
"""Draws beyond an end, at least: strict ends, of extremes of many places, take more resamples."""
LEAST_SEEDS = 3

Groups = Sequence[Sequence[float]]
"""Numbers by seed, one group for each kind of run."""


class Runs(list[float]):
    """A group that knows its runs by name, so that one with several numbers counts once.

    Args:
        numbers: by seed, of runs that have finished.
        finished: their names, one for each number.
        failed: names of runs that should have numbers here and have none.
    """

    def __init__(
        self, numbers: Iterable[float], finished: Iterable[str], failed: Iterable[str]
    ) -> None:
        super().__init__(numbers)
        self.finished, self.failed = tuple(finished), frozenset(failed)


class Interval(NamedTuple):
    """A quantity and where it lies when seeds are drawn again; of fewer than three, None."""

    value: float
    low: float | None
    high: float | None


def bootstrap(
    groups: Groups,
    quantity: Callable[..., np.ndarray] | None = None,
    below: float = TAIL,
    above: float = TAIL,
) -> Interval:
    """The quantity of the groups' means, with its interval.

    Args:
        groups: finite numbers; none is empty.
        quantity: takes one array of means for each group, and works on arrays. None: the mean of
            the only group, or that of the first less that of the second. No extreme: see above.
        below, above: shares of draws that lie on either side of the interval.

    Example:
        >>> bootstrap([[3.0, 3.0, 3.0], [1.0, 1.0, 1.0]])
        Interval(value=2.0, low=2.0, high=2.0)
    """
    compute = quantity or (np.subtract if len(groups) == 2 else lambda mean: mean)
    numbers = [np.asarray(group, dtype=np.float64) for group in groups]
    means = [group.mean(keepdims=True) for group in numbers]
    value = float(compute(*means)[0])
    if min(map(len, groups)) < LEAST_SEEDS:
        return Interval(value, None, None)
    rng = np.random.default_rng(0)
    freedom = _freedom(numbers)
    resamples = max(RESAMPLES, math.ceil(LEAST_BEYOND / min(below, above)))
    widening = np.sqrt(freedom / rng.chisquare(freedom, resamples)) if freedom else 1.0
    drawn = [
        mean + widening * _deviations(group, resamples, rng)
        for group, mean in zip(numbers, means, strict=True)
    ]
    low, high = np.quantile(compute(*drawn), [below, 1.0 - above])
    return Interval(value, float(low), float(high))


def _freedom(groups: Sequence[np.ndarray]) -> float:
    """Welch's: that of the noisiest group alone up to that of all, as their spreads are alike."""
    spreads = np.array([group.var(ddof=1) / len(group) for group in groups])
    if not spreads.any():
        return 0.0
    freedoms = np.array([len(group) - 1 for group in groups])
    return float(spreads.sum() ** 2 / (spreads**2 / freedoms).sum())


def _deviations(group: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Of the mean, when seeds are drawn again; with the variance of a mean of so many."""
    drawn = rng.choice(group, (resamples, len(group))).mean(axis=1) - group.mean()
    return drawn * math.sqrt(len(group) / (len(group) - 1))


class Quantity(Protocol):
    """What a claim is about."""

    @property
    def groups(self) -> Groups:
        """All that it is computed from, each once."""
        ...

    def find(self, below: float = TAIL, above: float = TAIL) -> Interval:
        """Its interval, too high and too low in no more than these shares of cases."""
        ...


class Means(NamedTuple):
    """A quantity of means, as ``bootstrap`` takes it."""

    groups: Groups
    quantity: Callable[..., np.ndarray] | None = None

    def find(self, below: float = TAIL, above: float = TAIL) -> Interval:
        """As ``bootstrap`` does."""
        return bootstrap(self.groups, self.quantity, below, above)


class Distance(NamedTuple):
    """How far from 0 a quantity is.

    Example:
        >>> Distance(Means([[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]])).find()
        Interval(value=2.0, low=2.0, high=2.0)
    """

    of: Quantity

    @property
    def groups(self) -> Groups:
        """Those of the quantity."""
        return self.of.groups

    def find(self, below: float = TAIL, above: float = TAIL) -> Interval:
        """That of the most of the quantity and its negative, from 0 on."""
        value, low, high = self.of.find(below / 2, below / 2)
        _, lowest, highest = self.of.find(above, above)
        if low is None or high is None or lowest is None or highest is None:
            return Interval(abs(value), None, None)
        return Interval(abs(value), max(low, -high, 0.0), max(highest, -lowest))


class Extreme(NamedTuple):
    """The least or the most of several quantities.

    Example:
        >>> Extreme("least", [Means([[3.0] * 3]), Means([[1.0] * 3])]).find()
        Interval(value=1.0, low=1.0, high=1.0)
    """

    kind: Literal["least", "most"]
    places: Sequence[Quantity]

    @property
    def groups(self) -> Groups:
        """Those of all places. A list that several of them hold is one group."""
        return list({id(group): group for one in self.places for group in one.groups}.values())

    def find(self, below: float = TAIL, above: float = TAIL) -> Interval:
        """From all places' intervals, as the head of this file says."""
        if self.kind == "least":
            pick, above = min, above / len(self.places)
        else:
            pick, below = max, below / len(self.places)
        values, lows, highs = zip(*(one.find(below, above) for one in self.places), strict=True)
        has_seeds = None not in lows
        return Interval(
            pick(values), pick(lows) if has_seeds else None, pick(highs) if has_seeds else None
        )


def judge(
    claim: str,
    groups: Groups,
    region: tuple[float, float],
    *,
    unit: str,
    quantity: Callable[..., np.ndarray] | None = None,
    note: str = "",
    lack: str = "",
) -> Verdict:
    """A claim about one quantity of means, as ``bootstrap`` takes it, beside its numbers.

    The rest is as ``judge_quantity`` takes it.
    """
    of = Means(groups, quantity)
    return judge_quantity(claim, of, region, unit=unit, note=note, lack=lack)


def judge_quantity(
    claim: str,
    of: Quantity,
    region: tuple[float, float],
    *,
    unit: str,
    note: str = "",
    lack: str = "",
) -> Verdict:
    """A claim beside its numbers.

    Args:
        claim: a sentence.
        of: what it is about. Without groups, with empty ones or with numbers that are not finite
            it is "undecided" and has no value.
        region: lowest and highest value that bear the claim out; infinite sides are open.
        unit: of the quantity.
        note: for the reader.
        lack: why a group is empty, where it is not for runs that have not finished.
    """
    groups = of.groups
    is_finite = all(math.isfinite(number) for group in groups for number in group)
    fewest = min(map(len, groups), default=0)
    found = of.find() if fewest and is_finite else None
    notes = [note, *_describe_runs(groups)]
    if not fewest:
        notes.append(lack or "Runs that it needs are missing.")
    elif fewest < LEAST_SEEDS:
        notes.append(f"{fewest} of at least {LEAST_SEEDS} seeds.")
    value, low, high = found or (None, None, None)
    return Verdict(
        claim=claim,
        word=_word(low, high, region),
        value=value,
        low=low,
        high=high,
        region=region,
        unit=unit,
        note=" ".join(filter(None, notes)),
    )


def _describe_runs(groups: Groups) -> list[str]:
    """How many failed and how many diverged, each run once; without names a number is a run."""
    finished: dict[Hashable, bool] = {}
    failed: set[Hashable] = set()
    for group in groups:
        has_names = isinstance(group, Runs)
        names = group.finished if has_names else [(id(group), i) for i in range(len(group))]
        for name, number in zip(names, group, strict=True):
            finished[name] = finished.get(name, True) and math.isfinite(number)
        failed |= group.failed if has_names else set()
    counts = {"failed": len(failed), "diverged": list(finished.values()).count(False)}
    total = len(failed | finished.keys())
    return [f"{count} of {total} runs {what}." for what, count in counts.items() if count]


def _word(low: float | None, high: float | None, region: tuple[float, float]) -> Word:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "undecided"
    least, most = region
    if least <= low and high <= most:
        return "supports"
    return "contradicts" if high < least or low > most else "undecided"
