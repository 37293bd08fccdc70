"""What a measurement leaves behind: plain data that goes to JSON and back."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.environment import Environment
from flashpoint.bench.memory import Peak
from flashpoint.bench.suites import Limits
from flashpoint.bench.timing import Timing
from flashpoint.errors import InputError

FORMAT = 1
"""Number of the layout of the file; a reader refuses others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One provider on one case.

    Attributes:
        skipped: why there is no timing, or None.
        relative_error: against fp64; None for providers that compute another function.
        peak: extra memory of forward, or of backward alone in training; None if not asked for.
    """

    provider: str
    timing: Timing | None = None
    skipped: str | None = None
    relative_error: float | None = None
    peak: Peak | None = None

    @property
    def extra_bytes(self) -> int | None:
        """Peak extra memory, where it was measured."""
        return self.peak.extra_bytes if self.peak else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One case, all its measurements, and what is promised for it.

    Attributes:
        is_overhead: the shape is so small that the time is the cost of calling.
    """

    case: Case
    limits: Limits
    is_overhead: bool
    measurements: tuple[Measurement, ...]

    def of(self, provider: str) -> Measurement:
        """The measurement of one provider."""
        return next(found for found in self.measurements if found.provider == provider)

    @property
    def ratio(self) -> float | None:
        """Flashpoint's median time over SDPA's."""
        ours, theirs = self.of("flashpoint").timing, self.of("sdpa").timing
        return ours.median_s / theirs.median_s if ours and theirs else None

    @property
    def gflops_per_s(self) -> float | None:
        """Rate of Flashpoint's matrix products."""
        timing = self.of("flashpoint").timing
        return self.case.flops / timing.median_s / 1e9 if timing else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A whole file: where and when, and the rows."""

    environment: Environment
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"format": FORMAT, **_finite(asdict(self))}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` has written."""
        data = json.loads(text)
        if data.get("format") != FORMAT:
            raise InputError(
                f"the file's format is {data.get('format')!r}, this version reads {FORMAT}. "
                "Measure again with `flashpoint bench --json FILE`."
            )
        return cls(
            environment=Environment(**data["environment"]),
            rows=tuple(_row(row) for row in data["rows"]),
        )


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
        limits=Limits(**data["limits"]),
        is_overhead=data["is_overhead"],
        measurements=tuple(_measurement(found) for found in data["measurements"]),
    )


def _measurement(data: dict[str, Any]) -> Measurement:
    """A measurement out of its JSON object."""
    rest = dict(data)
    timing, peak, error = (rest.pop(name) for name in ("timing", "peak", "relative_error"))
    return Measurement(
        relative_error=None if error is None else float(error),
        timing=Timing(**timing) if timing else None,
        peak=Peak(**peak) if peak else None,
        **rest,
    )
