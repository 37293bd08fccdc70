"""Names of tables and how numbers are written in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from docs_numbers.stored import Stored
from flashpoint.lab.report.verdicts import PAST, describe_region, numbers_of
from flashpoint.lab.study.verdict import LEAST_SEEDS, Interval, bootstrap

Generator = Callable[[Stored], str]
TABLES: dict[str, Generator] = {}
"""What stands between markers, by name; modules that make tables fill it in."""


def numbers(name: str) -> Callable[[Generator], Generator]:
    """Let a function make what stands between the markers of this name."""

    def add(function: Generator) -> Generator:
        if name in TABLES:
            raise ValueError(f"two functions make {name!r}")
        TABLES[name] = function
        return function

    return add


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table.

    Example:
        >>> print(table(["a", "b"], [[1, ""]]))
        | a | b |
        |---|---|
        | 1 | |
    """
    lines = [_line(head), "|" + "---|" * len(head)]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row of {len(row)} cells under a head of {len(head)}: {row}")
        lines.append(_line(row))
    return "\n".join(lines)


def _line(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def listed(rows: Mapping[str, str]) -> str:
    """Numbers that are in no table of their own, each with what it is."""
    return table(["more numbers", ""], rows.items())


def spread(values: np.ndarray, digits: int = 2) -> str:
    """Mean and standard deviation over seeds."""
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def between(values: Iterable[float], digits: int = 2) -> str:
    """From the least to the most.

    Example:
        >>> between([3, 1, 2], 0), between([1.0, 1.01], 1)
        ('1 to 3', '1.0')
    """
    found = list(values)
    low, high = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def by_seed(values: Iterable[float], form: str = ".2f") -> str:
    """All of them, with commas between."""
    return ", ".join(format(value, form) for value in values)


def interval(
    groups: Sequence[np.ndarray], quantity: Callable[..., np.ndarray] | None = None
) -> Interval:
    """A quantity of means over seeds and its interval of 95%, by the rule of the studies."""
    return bootstrap([group.tolist() for group in groups], quantity)


def difference(first: np.ndarray, second: np.ndarray, digits: int = 2) -> list[str]:
    """Two cells: the first less the second, and its interval of 95%."""
    found = interval([first, second])
    return [
        f"{found.value:+.{digits}f}",
        f"{found.low:+.{digits}f} to {found.high:+.{digits}f}",
    ]


def less(first: np.ndarray, second: np.ndarray, digits: int = 2) -> str:
    """The same in one cell."""
    value, interval = difference(first, second, digits)
    return f"{value} ({interval})"


def behind(first: np.ndarray, second: np.ndarray) -> str:
    """The same, without an interval where there are too few seeds for one."""
    if len(first) >= LEAST_SEEDS:
        return less(first, second)
    return f"{first.mean() - second.mean():+.2f}"


def claims(stored: Stored, study: str) -> str:
    """What came of every claim of a study that has runs, by the rule of verdicts."""
    rows: list[list[str]] = []
    for verdict in stored.judged(study):
        value, low, high = numbers_of(verdict)
        space = "" if verdict.unit.startswith("%") else " "
        rows.append(
            [
                verdict.claim.removesuffix("."),
                f"**{PAST[verdict.word]}**",
                f"{value}{space}{verdict.unit}",
                verdict.note.removesuffix(".") if verdict.low is None else f"{low} to {high}",
                describe_region(verdict.region),
            ]
        )
    return table(["claim", "verdict", "found", "interval", "holds if"], rows)
