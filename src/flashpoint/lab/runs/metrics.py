"""metrics.jsonl, one line a log step: read by everyone, written by the one that trains."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from flashpoint.files import json_text
from flashpoint.lab.runs.names import METRICS
from flashpoint.lab.runs.stored import check, exists, read_json_lines
from flashpoint.lab.runs.writing import replace_file, writing

Line = Mapping[str, Any]

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
    file = folder / METRICS
    if not exists(file):
        return []
    lines = cast("list[dict[str, Any]]", read_json_lines(file, _Head, _ADVICE))
    for number, line in enumerate(lines, start=1):
        numbers = {name: value for name, value in line.items() if name != "kind"}
        check(numbers, Mapping[str, int | float | None], f"{file}, line {number}", _ADVICE)
    return lines


class MetricsFile:
    """Writes a run's lines; what stands there beyond ``step`` is dropped.

    Args:
        folder: of the run.
        step: where the run goes on.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / METRICS
        found = read_metrics(folder)
        self.lines: list[Line] = [line for line in found if line["step"] <= step]
        self.num_dropped = len(found) - len(self.lines)
        replace_file(self.path, b"".join(_encode(line) for line in self.lines))
        self._file = self.path.open("ab", buffering=0)  # nothing is left to fail in close()

    def add(self, line: Line) -> None:
        """Append a line; a checkpoint makes it last."""
        self.lines.append(line)
        with writing(self.path):
            rest = _encode(line)
            while rest:
                rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Bring all lines to disk."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def count_at(self, step: int) -> int:
        """Lines that were there when the checkpoint of a step was saved: it is validated later."""
        return sum((line["step"], line["kind"]) != (step, "validation") for line in self.lines)

    def validations(self) -> dict[int, Line]:
        """The validation lines by step."""
        return {line["step"]: line for line in self.lines if line["kind"] == "validation"}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encode(line: Line) -> bytes:
    return json_text(line).encode() + b"\n"
