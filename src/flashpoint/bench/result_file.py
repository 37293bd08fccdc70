"""Results to JSON and back."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.environment import Environment
from flashpoint.bench.limits import Limits, SpeedLimit
from flashpoint.bench.memory import Peak
from flashpoint.bench.model_cases import ModelCase
from flashpoint.bench.result import Measurement, ModelMeasurement, ModelRow, Result, Row
from flashpoint.bench.timing import Timing
from flashpoint.errors import InputError

FORMAT = 2
"""Number of the layout of the file. 1 had one limit, on the ratio of our time to SDPA's."""

_EARLIER_BOUNDS = {"bf16": 3e-2, "fp16": 4e-3, "fp32": 1e-4}
"""Of files without bounds. Their errors with norms are against norms that were not rounded."""

_DERIVED = ("tflops_per_s", "gbytes_per_s", "matrix_share")


def to_json(result: Result) -> str:
    """The file's text; rates and speed-ups are written for other readers, and not read again."""
    data = asdict(result)
    for row, row_data in zip(result.rows, data["rows"], strict=True):
        row_data["speedup"] = row.speedup(row.best_sdpa)
        for found in row_data["measurements"]:
            found |= _derived(result, row, found["provider"])
    for row, row_data in zip(result.models, data["models"], strict=True):
        row_data["speedup"] = row.speedup
        for found in row_data["measurements"]:
            found["images_per_s"] = row.images_per_s(found["attention"])
    return json.dumps({"format": FORMAT, **_finite(data)}, indent=2) + "\n"


def from_json(text: str) -> Result:
    """Read what ``to_json`` has written, in this format or the one before."""
    data = json.loads(text)
    number = data.get("format") if isinstance(data, dict) else None
    if number not in (1, FORMAT):
        raise InputError(
            f"the file's format is {number!r}, this version reads 1 and {FORMAT}. "
            "Measure again with `flashpoint bench --json FILE`."
        )
    if not data["rows"] and not data.get("models"):
        raise InputError("it holds no rows, so there is nothing to show.")
    return Result(
        environment=Environment(**data["environment"]),
        rows=tuple(_row(row) for row in data["rows"]),
        models=tuple(_model_row(row) for row in data.get("models", ())),
        matrix_flops_per_s=data.get("matrix_flops_per_s", {}),
    )


def read(file: Path) -> Result:
    """Read a file, or say in one line why it is none of ours."""
    try:
        return from_json(file.read_text())
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}.") from error
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is not a result of `flashpoint bench --json FILE`: {error!r}."
        ) from error


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


def _row(data: dict[str, Any]) -> Row:
    """A row out of its JSON object."""
    case = dict(data["case"])
    shape = Shape(**case.pop("shape"))
    return Row(
        case=Case(shape=shape, **case),
        limits=_limits(dict(data["limits"])),
        error_bound=data.get("error_bound", _EARLIER_BOUNDS[case["dtype"]]),
        is_overhead=data["is_overhead"],
        measurements=tuple(_measurement(found) for found in data["measurements"]),
    )


def _model_row(data: dict[str, Any]) -> ModelRow:
    """A row of a whole model out of its JSON object."""
    return ModelRow(
        case=ModelCase(**data["case"]),
        limit=_speed_limit(data["limit"]) if data["limit"] else None,
        measurements=tuple(
            ModelMeasurement(
                attention=found["attention"],
                timing=Timing(**found["timing"]) if found["timing"] else None,
                skipped=found["skipped"],
                peak=Peak(**found["peak"]) if found["peak"] else None,
            )
            for found in data["measurements"]
        ),
    )


def _limits(data: dict[str, Any]) -> Limits:
    """Limits out of their JSON object; a ratio of format 1 is a speed-up over SDPA."""
    ratio = data.pop("ratio", None)
    speed = [SpeedLimit(rivals=("sdpa",), must=1 / ratio)] if ratio else []
    speed += map(_speed_limit, data.pop("speed", ()))
    return Limits(speed=tuple(speed), **data)


def _speed_limit(data: dict[str, Any]) -> SpeedLimit:
    rivals = tuple(data["rivals"])
    return SpeedLimit(rivals=rivals, must=data["must"], aim=data["aim"])


def _measurement(data: dict[str, Any]) -> Measurement:
    """A measurement out of its JSON object."""
    rest = {name: value for name, value in data.items() if name not in _DERIVED}
    timing, peak, error = (rest.pop(name) for name in ("timing", "peak", "relative_error"))
    return Measurement(
        relative_error=None if error is None else float(error),
        timing=Timing(**timing) if timing else None,
        peak=Peak(**peak) if peak else None,
        **rest,
    )
