"""Results of ``benchmarks/sequence.py`` as rows: longer sequences than the suites have.

Taken are one call with all keys, which its chunks are compared with, and its longest call.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NotRequired, TypedDict

from flashpoint.lab.bench.cases import Case, Mode, Shape
from flashpoint.lab.bench.entry import Limits
from flashpoint.lab.bench.environment import Environment
from flashpoint.lab.bench.result import OURS, Measurement, Result, Row
from flashpoint.lab.bench.timing import Timing
from flashpoint.lab.runs.stored import check

_ADVICE = "Measure again with benchmarks/sequence.py."


class _Settings(TypedDict):
    batch: int
    heads: int
    dtype: str
    most_error: float


class _Chunks(TypedDict):
    mode: Mode
    length: int
    dim: int
    times: dict[str, Timing]


class _Long(TypedDict):
    length: int
    dim: int
    forward_s: float
    backward_s: float
    errors: dict[str, float]


class _File(TypedDict):
    """As in a file, like all of these; a part that failed is not there."""

    environment: Environment
    settings: _Settings
    chunks: NotRequired[list[_Chunks]]
    long: NotRequired[list[_Long]]


def is_of_lengths(data: Mapping[str, Any]) -> bool:
    """Whether a file's content is that of the script."""
    return "chunks" in data or "long" in data


def result_of(data: Mapping[str, Any], where: str) -> Result:
    """Its calls, as if a suite had measured them.

    Raises:
        InputError: the content is not that of the script; ``where`` begins the message.
    """
    file = check(data, _File, where, _ADVICE)
    return Result(environment=file["environment"], rows=tuple(_rows(file)))


def _rows(file: _File) -> Iterator[Row]:
    settings = file["settings"]
    for chunks in file.get("chunks", []):
        size, timing = (chunks["length"], chunks["dim"]), chunks["times"]["one call"]
        yield _row(settings, chunks["mode"], size, timing, None)  # errors are those of chunks
    for long in file.get("long", []):
        size = (long["length"], long["dim"])
        error = max(long["errors"].values())
        yield _row(settings, "forward", size, timed_once(long["forward_s"]), error)
        yield _row(settings, "backward", size, timed_once(long["backward_s"]), error)


def _row(
    settings: _Settings, mode: Mode, size: tuple[int, int], timing: Timing, error: float | None
) -> Row:
    shape = Shape(settings["batch"], settings["heads"], *size)
    case = Case(shape=shape, dtype=settings["dtype"], mode=mode, device="cuda")
    ours = Measurement(provider=OURS, timing=timing, relative_error=error)
    return Row(
        case=case,
        limits=Limits(),
        error_bound=settings["most_error"],
        is_overhead=False,
        measurements=(ours,),
    )


def timed_once(seconds: float) -> Timing:
    """Of a call that was not repeated."""
    return Timing(
        median_s=seconds, p20_s=seconds, p80_s=seconds, rounds=1, repeats=1, method="events"
    )
