"""From outcomes to what findings are made of: numbers by factors, lines, tables and notes."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from flashpoint.lab.runs.findings import DataTable, Series
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Factor
from flashpoint.lab.study.verdict import Runs, bootstrap

PERCENT = 100.0
MAX_REASONS = 5


def select(outcomes: Sequence[Outcome], **factors: Factor) -> list[Outcome]:
    """Those that stand at these places."""
    return [
        outcome
        for outcome in outcomes
        if all(outcome.factors.get(name) == value for name, value in factors.items())
    ]


def levels(outcomes: Sequence[Outcome], factor: str) -> list[Factor]:
    """The places on an axis, whatever became of their trials: words as they come, numbers rising.

    Example:
        >>> some = [Outcome(name=n, factors={"a": n}, status="waiting") for n in "ba"]
        >>> levels(some, "a")
        ['b', 'a']
    """
    found = dict.fromkeys(o.factors[factor] for o in outcomes if factor in o.factors)
    if any(isinstance(level, str) for level in found):
        return list(found)
    return sorted(found)


def is_planned(outcomes: Sequence[Outcome], factor: str, level: Factor) -> bool:
    """Whether trials stand at a place: claims about arms that a stored study has not wait for it.

    Example:
        >>> is_planned([], "attention", "relu")
        True
    """
    return not outcomes or level in levels(outcomes, factor)


def numbers(
    outcomes: Sequence[Outcome], number: str, scale: float = 1.0, **factors: Factor
) -> Runs:
    """A number of every finished trial that stands at these places; NaN where it has none."""
    there = select(outcomes, **factors)
    finished = [outcome for outcome in there if outcome.status == "finished"]
    return Runs(
        (scale * outcome.numbers.get(number, math.nan) for outcome in finished),
        finished=(outcome.name for outcome in finished),
        failed=(outcome.name for outcome in there if outcome.status == "failed"),
    )


def finite(some: Sequence[float]) -> list[float]:
    """Those of runs that did not diverge."""
    return [value for value in some if math.isfinite(value)]


def mean(some: Sequence[float]) -> float | None:
    """Of the finite ones among some values, or None of none."""
    found = finite(some)
    return statistics.fmean(found) if found else None


def line(
    name: str,
    points: Sequence[tuple[float | str, Sequence[float]]],
    *,
    is_dashed: bool = False,
    has_line: bool = True,
) -> Series:
    """Means of finite values, from three on with intervals; places without any are left out.

    Args:
        name: of the line.
        points: a place on the axis, and values by seed.
        is_dashed, has_line: as ``Series`` takes them.
    """
    there = [(x, bootstrap([finite(by_seed)])) for x, by_seed in points if finite(by_seed)]
    return Series(
        name=name,
        x=[x for x, _ in there],  # pyright: ignore[reportArgumentType]  one kind in one line
        y=[found.value for _, found in there],
        low=[found.low for _, found in there],
        high=[found.high for _, found in there],
        is_dashed=is_dashed,
        has_line=has_line,
    )


def along(
    name: str,
    outcomes: Sequence[Outcome],
    axis: str,
    number: str,
    *,
    scale: float = 1.0,
    **factors: Factor,
) -> Series:
    """A number against a factor, as a line."""
    there = select(outcomes, **factors)
    points = [
        (place, numbers(there, number, scale, **{axis: place})) for place in levels(there, axis)
    ]
    return line(name, points)


def arm_table(name: str, outcomes: Sequence[Outcome], columns: Sequence[str]) -> DataTable:
    """A row for trials that differ in their seed only: how many have finished, means, deviations.

    Means are of finite numbers; "diverged" counts runs that have others. That column, and
    deviations, are left out where they are 0 everywhere.
    """
    places = dict.fromkeys(factor for outcome in outcomes for factor in outcome.factors)
    factors = [factor for factor in places if factor != "seed"]
    arms: dict[tuple[Factor | None, ...], list[Outcome]] = {}
    for outcome in outcomes:
        place = tuple(outcome.factors.get(factor) for factor in factors)
        arms.setdefault(place, []).append(outcome)
    finished = [[o for o in arm if o.status == "finished"] for arm in arms.values()]
    found: dict[str, list[float | int | None]] = {"runs": [len(arm) for arm in finished]}
    found |= _unless_zero("diverged", [sum(map(_has_diverged, arm)) for arm in finished])
    for column in columns:
        if any(column in outcome.numbers for outcome in outcomes):
            groups = [finite(numbers(arm, column)) for arm in finished]
            found[column] = [mean(group) for group in groups]
            found |= _unless_zero(f"{column} sd", [_deviation(group) for group in groups])
    rows = [
        [*place, *cells]
        for place, cells in zip(arms, zip(*found.values(), strict=True), strict=True)
    ]
    title = "Mean and standard deviation over seeds"
    return DataTable(name=name, title=title, head=[*factors, *found], rows=rows)


def _unless_zero(
    head: str, cells: list[float | int | None]
) -> dict[str, list[float | int | None]]:
    return {head: cells} if any(cells) else {}


def _deviation(some: Sequence[float]) -> float | None:
    return statistics.stdev(some) if len(some) > 1 else None


def _has_diverged(outcome: Outcome) -> bool:
    return not all(map(math.isfinite, outcome.numbers.values()))


def state_notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What is missing, and why."""
    left = [outcome for outcome in outcomes if outcome.status != "finished"]
    failed = [outcome for outcome in left if outcome.status == "failed"]
    notes: list[str] = []
    if not outcomes:
        notes.append("Nothing has been run.")
    elif left:
        done = len(outcomes) - len(left)
        notes.append(f"{done} of {len(outcomes)} trials have finished, {len(failed)} failed.")
    notes += [
        f"{o.name} failed: {o.reason or 'no reason is known.'}" for o in failed[:MAX_REASONS]
    ]
    return notes + _divergences([o for o in outcomes if o.status == "finished"])


def _divergences(finished: Sequence[Outcome]) -> list[str]:
    """Which runs came to numbers that are not finite, on the way or at the end."""
    ended = [o.name for o in finished if _has_diverged(o)]
    passed = [o.name for o in finished if o.numbers.get("skipped") and o.name not in ended]
    return [
        f"{len(names)} of {len(finished)} finished trials {what}: {', '.join(names[:MAX_REASONS])}"
        + (", ..." if len(names) > MAX_REASONS else ".")
        for names, what in (
            (ended, "diverged, so that numbers of theirs are not finite"),
            (passed, "left out updates whose loss or gradient was not finite"),
        )
        if names
    ]


def change(
    first: np.ndarray, second: np.ndarray, first_before: np.ndarray, second_before: np.ndarray
) -> np.ndarray:
    """How much a difference is larger than another."""
    return (first - second) - (first_before - second_before)
