"""Named sets of shapes, each with the limits that Flashpoint promises next to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashpoint.bench.cases import Shape

LONG = 8192
"""Quick runs leave out lengths beyond this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one measurement has to keep; None promises nothing.

    Attributes:
        ratio: Flashpoint's median time over SDPA's, at most.
        memory_slack_bytes: Flashpoint's peak extra memory over SDPA's peak, at most.
    """

    ratio: float | None = None
    memory_slack_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A shape of a suite and what is promised at it, forward and training alike.

    Attributes:
        ratios: for each dtype the largest promised ratio of times.
    """

    shape: Shape
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_slack_bytes: int | None = None

    def limits(self, dtype: str) -> Limits:
        """The promise for one dtype."""
        return Limits(ratio=self.ratios.get(dtype), memory_slack_bytes=self.memory_slack_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Shapes to time, and one tiny shape in fp32 whose time is the overhead of a call.

    Limits hold for relu without causality.
    """

    entries: tuple[Entry, ...]
    overhead: Entry


_CPU_RATIOS = {"bf16": 0.65, "fp32": 1.0}

SUITES: Mapping[str, Suite] = {
    "cpu": Suite(
        entries=(
            Entry(shape=Shape(8, 6, 197, 64), ratios=_CPU_RATIOS),
            Entry(shape=Shape(1, 8, 1024, 64), ratios=_CPU_RATIOS),
            Entry(shape=Shape(1, 8, 4096, 64), ratios=_CPU_RATIOS),
            Entry(
                shape=Shape(1, 8, 16384, 64),
                ratios=_CPU_RATIOS,
                memory_slack_bytes=64 * 10**6,
            ),
        ),
        overhead=Entry(shape=Shape(1, 1, 16, 16), ratios={"fp32": 3.0}),
    ),
}


def stated_entry(suite: Suite, shape: Shape) -> Entry:
    """The suite's entry at ``shape``, or one that promises nothing."""
    return next((entry for entry in suite.entries if entry.shape == shape), Entry(shape=shape))
