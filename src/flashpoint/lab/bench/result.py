"""What a measurement leaves behind: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.entry import BEST_SDPA, Limits, SpeedLimit
from flashpoint.lab.bench.environment import Environment
from flashpoint.lab.bench.memory import Peak
from flashpoint.lab.bench.suites import OUR_TWIN, RIVAL_TWIN, ModelCase
from flashpoint.lab.bench.timing import Timing

OURS = "flashpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One provider on one case.

    Attributes:
        skipped: why there is no timing, or None.
        relative_error: against fp64.
        peak: extra memory of forward, or of backward alone in backward and training; None if not
            asked for.
        kept_bytes: what forward keeps for backward; None if not asked for, or nothing is kept.
    """

    provider: str
    timing: Timing | None = None
    skipped: str | None = None
    relative_error: float | None = None
    peak: Peak | None = None
    kept_bytes: int | None = None

    @property
    def extra_bytes(self) -> int | None:
        """Peak extra memory, where it was measured."""
        return self.peak.extra_bytes if self.peak else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One case, all its measurements, and what is promised for it.

    Attributes:
        error_bound: a larger relative error is no rounding: the result is wrong.
        is_overhead: the shape is so small that the time is the cost of calling.
    """

    case: Case
    limits: Limits
    error_bound: float
    is_overhead: bool
    measurements: tuple[Measurement, ...]

    def of(self, provider: str) -> Measurement:
        """The measurement of one provider; an empty one where it was not asked for."""
        empty = Measurement(provider=provider)
        return next((found for found in self.measurements if found.provider == provider), empty)

    def is_wrong(self, measurement: Measurement) -> bool:
        """Whether rounding cannot explain its error."""
        error = measurement.relative_error
        return error is not None and not error <= self.error_bound

    def best_of(self, rivals: tuple[str, ...]) -> Measurement | None:
        """The fastest of those that gave a right result."""
        right = (found for found in map(self.of, rivals) if not self.is_wrong(found))
        timed = [(found.timing.median_s, found) for found in right if found.timing]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None

    def speedup(self, rivals: tuple[str, ...]) -> float | None:
        """The median time of the best rival over Flashpoint's."""
        ours, best = self.of(OURS).timing, self.best_of(rivals)
        return best.timing.median_s / ours.median_s if ours and best and best.timing else None

    @property
    def best_sdpa(self) -> tuple[str, ...]:
        """The providers of softmax attention to beat on the case's device.

        Naming a backend has its own cost, so that a call's overhead is held to the plain one.
        """
        return ("sdpa",) if self.is_overhead else BEST_SDPA[self.case.device]

    @property
    def rivals(self) -> tuple[str, ...]:
        """Over whom its speed-up is shown: SDPA, and whom its first limit names besides."""
        stated = self.limits.speed[0].rivals if self.limits.speed else ()
        return tuple(dict.fromkeys((*self.best_sdpa, *stated)))

    def flops_per_s(self, provider: str = OURS) -> float | None:
        """Rate of a provider's matrix products."""
        timing = self.of(provider).timing
        return self.case.flops / timing.median_s if timing else None

    def bytes_per_s(self, provider: str = OURS) -> float | None:
        """Rate at which the tensors of the case pass by."""
        timing = self.of(provider).timing
        return self.case.bytes_moved / timing.median_s if timing else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMeasurement:
    """One twin of a whole model, or timm's model in its place.

    Attributes:
        timing: of a step; None where it could not run.
        skipped: why.
        peak: memory of a step over what weights and images take.
    """

    attention: str
    timing: Timing | None = None
    skipped: str | None = None
    peak: Peak | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """Both twins of a whole model, timm's beside them, and what is promised for relu."""

    case: ModelCase
    limits: tuple[SpeedLimit, ...]
    measurements: tuple[ModelMeasurement, ...]

    def limit_over(self, rival: str) -> SpeedLimit | None:
        """What is promised beside one of the others, if anything."""
        return next((limit for limit in self.limits if limit.rivals == (rival,)), None)

    def of(self, attention: str) -> ModelMeasurement:
        """The measurement of one twin; an empty one where there is none."""
        empty = ModelMeasurement(attention=attention)
        return next((m for m in self.measurements if m.attention == attention), empty)

    def images_per_s(self, attention: str) -> float | None:
        """How many images a twin learns from in a second."""
        timing = self.of(attention).timing
        return self.case.batch / timing.median_s if timing else None

    @property
    def speedup(self) -> float | None:
        """softmax's time over relu's."""
        return self.speedup_over(RIVAL_TWIN)

    def speedup_over(self, rival: str) -> float | None:
        """The time of another one over relu's."""
        ours, theirs = (self.images_per_s(name) for name in (OUR_TWIN, rival))
        return ours / theirs if ours and theirs else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A whole file: where and when, and the rows.

    Attributes:
        models: rows of whole models.
        matrix_flops_per_s: of one large matrix product on the same device, by dtype.
        suite: that was asked for; None where none was named, and in files from before.
    """

    environment: Environment
    rows: tuple[Row, ...] = ()
    models: tuple[ModelRow, ...] = ()
    matrix_flops_per_s: Mapping[str, float] = field(default_factory=dict[str, float])
    suite: str | None = None

    def matrix_share(self, row: Row, provider: str = OURS) -> float | None:
        """A provider's rate over that of the large product."""
        rate, most = row.flops_per_s(provider), self.matrix_flops_per_s.get(row.case.dtype)
        return rate / most if rate and most else None
