"""metrics.jsonl of a run as whoever trains, evaluates or reports reads it; needs no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from flashpoint.lab.runs.stored import check, exists, read_json_lines

FILE = "metrics.jsonl"
_ADVICE = "Repair or remove the line; the other lines are left as they are."


class _Head(TypedDict):
    """What every line has; the rest are numbers."""

    kind: str
    step: int


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's metrics; half a line at the end is left out, a broken one refused.

    Example:
        >>> read_metrics(Path("no/such/run"))
        []
    """
    file = folder / FILE
    if not exists(file):
        return []
    lines = cast("list[dict[str, Any]]", read_json_lines(file, _Head, _ADVICE))
    for number, line in enumerate(lines, start=1):
        numbers = {name: value for name, value in line.items() if name != "kind"}
        check(numbers, Mapping[str, int | float | None], f"{file}, line {number}", _ADVICE)
    return lines
