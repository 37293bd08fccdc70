"""Results to JSON and back."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar, cast

from flashpoint.errors import InputError, describe
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.entry import Limits, SpeedLimit
from flashpoint.lab.bench.environment import Environment
from flashpoint.lab.bench.memory import Peak
from flashpoint.lab.bench.result import Measurement, ModelMeasurement, ModelRow, Result, Row
from flashpoint.lab.bench.suites import ModelCase
from flashpoint.lab.bench.timing import Timing
from flashpoint.lab.runs.stored import check, parse_json, read_text

T = TypeVar("T")
FORMAT = 2
"""Number of the layout of the file. 1 had one limit, on the ratio of our time to SDPA's."""

_EARLIER_BOUNDS = {"bf16": 3e-2, "fp16": 4e-3, "fp32": 1e-4}
"""Of files without bounds. Their errors with norms are against norms that were not rounded."""

_ADVICE = "Measure again with `flashpoint bench --json FILE`."
_DERIVED = ("tflops_per_s", "gbytes_per_s", "matrix_share")


def to_json(result: Result) -> str:
    """The file's text; rates and speed-ups are written for other readers, and not read again."""
    data = asdict(result)
    for row, row_data in zip(result.rows, data["rows"], strict=True):
        row_data["speedup"] = row.speedup(row.rivals)
        for found in row_data["measurements"]:
            found |= _derived(result, row, found["provider"])
    for row, row_data in zip(result.models, data["models"], strict=True):
        row_data["speedup"] = row.speedup
        for found in row_data["measurements"]:
            found["images_per_s"] = row.images_per_s(found["attention"])
    return json.dumps({"format": FORMAT, **_finite(data)}, indent=2) + "\n"


class _Measurement(TypedDict):
    """As in a file, like all of these: with keys that are written for others."""

    provider: str
    timing: Timing | None
    skipped: NotRequired[str | None]
    relative_error: float | Literal["inf", "-inf", "nan"] | None
    peak: Peak | None
    kept_bytes: NotRequired[int | None]


class _Limits(TypedDict):
    ratio: NotRequired[float | None]
    speed: NotRequired[tuple[SpeedLimit, ...]]
    memory_slack_bytes: NotRequired[int | None]
    kept_share: NotRequired[float | None]


class _Row(TypedDict):
    case: Case
    limits: _Limits
    error_bound: NotRequired[float]
    is_overhead: bool
    measurements: list[_Measurement]


class _ModelMeasurement(TypedDict):
    attention: str
    timing: Timing | None
    skipped: str | None
    peak: Peak | None


class _ModelRow(TypedDict):
    case: ModelCase
    limit: NotRequired[SpeedLimit | None]
    limits: NotRequired[tuple[SpeedLimit, ...]]
    measurements: list[_ModelMeasurement]


class _File(TypedDict):
    environment: Environment
    rows: list[_Row]
    models: NotRequired[list[_ModelRow]]
    matrix_flops_per_s: NotRequired[dict[str, float]]
    suite: NotRequired[str | None]


def from_json(text: str, where: str = "the result") -> Result:
    """Read what ``to_json`` has written, in this format or the one before.

    Args:
        text: of the file.
        where: it is from; begins the message of an error.

    Raises:
        InputError: it is no JSON, or none of ours.
    """
    data = parse_json(text, dict[str, Any], where)
    number = data.get("format")
    if number not in (1, FORMAT):
        raise InputError(
            f"{where}: the file's format is {describe(number)}, this version reads 1 and "
            f"{FORMAT}. {_ADVICE}"
        )
    file = check(data, _File, where, _ADVICE)
    models = file.get("models", [])
    if not file["rows"] and not models:
        raise InputError(f"{where}: it holds no rows, so there is nothing to show.")
    return Result(
        environment=file["environment"],
        rows=tuple(_row(row, where) for row in file["rows"]),
        models=tuple(_model_row(row) for row in models),
        matrix_flops_per_s=file.get("matrix_flops_per_s", {}),
        suite=file.get("suite"),
    )


def read(file: Path) -> Result:
    """Read a file, or say in one line why it is none of ours."""
    return from_json(read_text(file), str(file))


def _derived(result: Result, row: Row, provider: str) -> dict[str, float | None]:
    """What follows from the median."""
    flops, moved = row.flops_per_s(provider), row.bytes_per_s(provider)
    share = result.matrix_share(row, provider)
    rates = (flops and flops / 1e12, moved and moved / 1e9, share)
    return dict(zip(_DERIVED, rates, strict=True))


def _finite(value: Any) -> Any:
    """The same with words for infinities and NaN, for which JSON has no numbers."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _row(data: _Row, where: str) -> Row:
    """A row out of its JSON object."""
    case = data["case"]
    if case.dtype not in _EARLIER_BOUNDS:
        raise InputError(f"{where}: dtype {describe(case.dtype)} is unknown. {_ADVICE}")
    return Row(
        case=case,
        limits=_limits(data["limits"]),
        error_bound=data.get("error_bound", _EARLIER_BOUNDS[case.dtype]),
        is_overhead=data["is_overhead"],
        measurements=tuple(map(_measurement, data["measurements"])),
    )


def _model_row(data: _ModelRow) -> ModelRow:
    """A row of a whole model out of its JSON object; earlier files have one limit, or none."""
    found = tuple(_of(ModelMeasurement, one) for one in data["measurements"])
    earlier = data.get("limit")
    limits = data.get("limits", (earlier,) if earlier else ())
    return ModelRow(case=data["case"], limits=limits, measurements=found)


def _limits(data: _Limits) -> Limits:
    """Limits out of their JSON object; a ratio of format 1 is a speed-up over SDPA."""
    ratio = data.get("ratio")
    earlier = (SpeedLimit(rivals=("sdpa",), must=1 / ratio),) if ratio else ()
    return Limits(
        speed=earlier + data.get("speed", ()),
        memory_slack_bytes=data.get("memory_slack_bytes"),
        kept_share=data.get("kept_share"),
    )


def _measurement(data: _Measurement) -> Measurement:
    """A measurement out of its JSON object."""
    error = data["relative_error"]
    found = _of(Measurement, data)
    return replace(found, relative_error=None if error is None else float(error))


def _of(kind: type[T], data: Mapping[str, Any]) -> T:
    """What a JSON object holds of a dataclass's fields."""
    names = [field.name for field in fields(cast(Any, kind)) if field.name in data]
    return kind(**{name: data[name] for name in names})
