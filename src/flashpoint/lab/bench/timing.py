"""Interleaved timing: the calls take turns, so that a slow minute of the machine hits them all."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

Call: TypeAlias = Callable[[], object]
Method: TypeAlias = Literal["clock", "events", "graph", "launches"]
"""How a sample was timed. clock: the clock read before and after the calls; events: CUDA events
before and after their launches; graph: the same around the replay of a graph of the calls;
launches: events before and after each launch by itself."""

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
        method: how a sample was timed.
    """

    median_s: float
    p20_s: float
    p80_s: float
    rounds: int
    repeats: int
    method: Method = "clock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """When to stop: after ``rounds``, or earlier once ``seconds`` have passed."""

    rounds: int
    seconds: float


class Sampler(NamedTuple):
    """``repeats`` calls made ready; ``measure`` gives the seconds of them all."""

    measure: Callable[[], float]
    repeats: int
    method: Method


class Timer(Protocol):
    """Waits until results exist."""

    def seconds_of(self, call: Call) -> float:
        """Time one call."""
        ...

    def prepare(self, call: Call, repeats: int) -> Sampler:
        """Make ready to time calls in a row, as often as wanted."""
        ...


class CpuTimer:
    """For calls whose results exist when they return."""

    def seconds_of(self, call: Call) -> float:
        """Time one call."""
        return self.prepare(call, 1).measure()

    def prepare(self, call: Call, repeats: int) -> Sampler:
        """Nothing needs to be made ready."""

        def measure() -> float:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return time.perf_counter() - start

        return Sampler(measure, repeats, "clock")


class Started(NamedTuple):
    """A call that has been made once, and what that took."""

    call: Call
    first_s: float


def start(call: Call, timer: Timer, *, compiles: bool = False) -> tuple[Started, object]:
    """Make the first call; gives its result too.

    Args:
        compiles: the first call makes kernels before it runs, so that the second one is timed.
    """
    if compiles:
        result = call()
        return Started(call, timer.seconds_of(call)), result
    results: list[object] = []
    seconds = timer.seconds_of(lambda: results.append(call()))
    return Started(call, seconds), results[0]


def interleave(started: Mapping[str, Started], budget: Budget, timer: Timer) -> dict[str, Timing]:
    """Warm every call, then time them in turns.

    Args:
        started: what to time, by name.
        budget: at least ``MIN_ROUNDS`` are run, whatever the seconds.
        timer: that of the device.
    """
    samples: dict[str, list[float]] = {name: [] for name in started}
    samplers: dict[str, Sampler] = {}
    for name, (call, first_s) in started.items():
        if first_s >= SELF_WARMING_S:
            samples[name].append(first_s)
        samplers[name] = timer.prepare(call, _repeats(call, timer, first_s))
    spent_s = sum(sum(values) for values in samples.values())
    first = 1 if all(samples.values()) else 0
    for turn in range(first, max(budget.rounds, MIN_ROUNDS)):
        if turn >= MIN_ROUNDS and spent_s >= budget.seconds:
            break
        for name in _order(list(samplers), turn):
            seconds = samplers[name].measure()
            samples[name].append(seconds / samplers[name].repeats)
            spent_s += seconds
    return {
        name: summarize(samples[name], sampler.repeats, sampler.method)
        for name, sampler in samplers.items()
    }


def summarize(samples: Sequence[float], repeats: int, method: Method = "clock") -> Timing:
    """Percentiles of two samples or more, with straight lines between neighbors."""
    p20_s, _, _, p80_s = statistics.quantiles(samples, n=5, method="inclusive")
    return Timing(
        median_s=statistics.median(samples),
        p20_s=p20_s,
        p80_s=p80_s,
        rounds=len(samples),
        repeats=repeats,
        method=method,
    )


def _repeats(call: Call, timer: Timer, first_s: float) -> int:
    """Go on warming for a while, and see how many of the fastest call fill one sample."""
    if first_s >= SELF_WARMING_S:
        return 1
    fastest_s, spent_s = math.inf, 0.0
    for _ in range(MAX_WARM_CALLS):
        seconds = timer.seconds_of(call)
        fastest_s, spent_s = min(fastest_s, seconds), spent_s + seconds
        if spent_s >= WARM_S:
            break
    return max(1, math.ceil(MIN_SAMPLE_S / max(fastest_s, 1e-9)))


def _order(names: list[str], turn: int) -> list[str]:
    """Rotate every round and turn around every cycle, so that nobody always follows the same."""
    start = turn % max(1, len(names))
    order = names[start:] + names[:start]
    return order[::-1] if turn // max(1, len(names)) % 2 else order
