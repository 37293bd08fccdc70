"""Interleaved timing: the calls take turns, so that a slow minute of the machine hits them all."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flashpoint.errors import UnsupportedError

Call: TypeAlias = Callable[[], object]
Timer: TypeAlias = Callable[[Call, int], float]
"""Seconds that the given number of calls takes, until their results exist."""

MIN_ROUNDS = 2
MIN_SAMPLE_S = 5e-3
"""Shorter calls are repeated within one sample, so that the clock's own cost vanishes."""
WARM_S = 0.1
MAX_WARM_CALLS = 1000
SELF_WARMING_S = 1.0
"""In longer calls a cold start vanishes, so their warm-up counts as the first round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds of one call: median, 20th and 80th percentile over ``rounds`` samples.

    Attributes:
        repeats: calls within one sample.
    """

    median_s: float
    p20_s: float
    p80_s: float
    rounds: int
    repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """When to stop: after ``rounds``, or earlier once ``seconds`` have passed."""

    rounds: int
    seconds: float


def time_on_cpu(call: Call, repeats: int) -> float:
    """Time calls whose results exist when they return."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def timer_for(device: str) -> Timer:
    """The timer that waits for ``device`` to finish."""
    if device != "cpu":
        raise UnsupportedError(f"timing on device {device!r} is not available. Pass 'cpu'.")
    return time_on_cpu


def interleave(
    calls: Mapping[str, Call],
    budget: Budget,
    timer: Timer,
    inspect: Callable[[str, object], None] | None = None,
) -> dict[str, Timing]:
    """Warm every call, then time them in turns.

    Args:
        calls: what to time, by name.
        budget: at least ``MIN_ROUNDS`` are run, whatever the seconds.
        timer: see ``timer_for``.
        inspect: is given the first result of each call, outside the timed part.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        first_s = _warm(name, call, timer, inspect)
        if first_s >= SELF_WARMING_S:
            samples[name].append(first_s)
        repeats[name] = _repeats(call, timer, first_s)
    spent_s = sum(sum(values) for values in samples.values())
    first = 1 if all(samples.values()) else 0
    for turn in range(first, max(budget.rounds, MIN_ROUNDS)):
        if turn >= MIN_ROUNDS and spent_s >= budget.seconds:
            break
        for name in _order(list(calls), turn):
            seconds = timer(calls[name], repeats[name])
            samples[name].append(seconds / repeats[name])
            spent_s += seconds
    return {name: summarize(samples[name], repeats[name]) for name in calls}


def summarize(samples: Sequence[float], repeats: int) -> Timing:
    """Percentiles of two samples or more, with straight lines between neighbours."""
    p20_s, _, _, p80_s = statistics.quantiles(samples, n=5, method="inclusive")
    return Timing(
        median_s=statistics.median(samples),
        p20_s=p20_s,
        p80_s=p80_s,
        rounds=len(samples),
        repeats=repeats,
    )


def _warm(
    name: str, call: Call, timer: Timer, inspect: Callable[[str, object], None] | None
) -> float:
    """Time the first call, and show its result."""
    results: list[object] = []
    seconds = timer(lambda: results.append(call()), 1)
    if inspect is not None:
        inspect(name, results[0])
    return seconds


def _repeats(call: Call, timer: Timer, first_s: float) -> int:
    """Go on warming for a while, and see how many of the fastest call fill one sample."""
    if first_s >= SELF_WARMING_S:
        return 1
    fastest_s, spent_s = math.inf, 0.0
    for _ in range(MAX_WARM_CALLS):
        seconds = timer(call, 1)
        fastest_s, spent_s = min(fastest_s, seconds), spent_s + seconds
        if spent_s >= WARM_S:
            break
    return max(1, math.ceil(MIN_SAMPLE_S / max(fastest_s, 1e-9)))


def _order(names: list[str], turn: int) -> list[str]:
    """Rotate every round and turn around every cycle, so that nobody always follows the same."""
    start = turn % len(names)
    order = names[start:] + names[:start]
    return order[::-1] if turn // len(names) % 2 else order
