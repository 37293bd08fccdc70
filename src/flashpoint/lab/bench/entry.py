"""What a suite is made of: cases, and the limits that Flashpoint promises next to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashpoint.lab.bench.cases import Bias, Case, Layout, Mask, Mode, QkNorm, Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedLimit:
    """Flashpoint is so many times as fast as the fastest of its rivals.

    Attributes:
        rivals: names of providers; those without a right result do not count.
        must: the speed-up that is promised.
        aim: the one that is hoped for; None: no other.
    """

    rivals: tuple[str, ...]
    must: float
    aim: float | None = None

    def bar(self, speedup: float) -> str:
        """The highest of limit and aim that is reached, else the limit that is missed.

        Example:
            >>> SpeedLimit(rivals=("sdpa",), must=1.2, aim=1.5).bar(1.3)
            '>=1.20'
        """
        if self.aim is not None and speedup >= self.aim:
            return f">={self.aim:.2f}"
        return f"{'>=' if speedup >= self.must else '<'}{self.must:.2f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """All that one case has to keep; what is empty or None promises nothing.

    Attributes:
        memory_slack_bytes: Flashpoint's peak extra memory over SDPA's peak, at most.
        kept_share: bytes kept for backward over those that SDPA's flash backend keeps, at most.
    """

    speed: tuple[SpeedLimit, ...] = ()
    memory_slack_bytes: int | None = None
    kept_share: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is promised."""
        return self == Limits()


RIVALS: Mapping[str, tuple[str, ...]] = {"cpu": ("sdpa",), "cuda": ("sdpa_cudnn", "sdpa_flash")}
"""The softmax attention that limits are stated against: the fastest of these."""

BEST_SDPA: Mapping[str, tuple[str, ...]] = {
    "cpu": RIVALS["cpu"],
    "cuda": (*RIVALS["cuda"], "sdpa_efficient"),
}
"""Those that can be the fastest softmax attention of a device, if they are measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One case of a suite but for its dtype, and what is promised for it.

    Attributes:
        limits: what is promised, by dtype.
        providers: to be measured besides the usual ones.
        slow_providers: the same, but not in quick runs: they compile for long.
        overhead_dtype: of a shape so small that the time is the cost of calling; such a case is
            measured in this dtype alone, on the host. None: an ordinary case.
        only_dtype: of an ordinary case that is measured in this dtype alone.
    """

    shape: Shape
    mode: Mode
    activation: str = "relu"
    causal: bool = False
    qk_norm: QkNorm = "none"
    layout: Layout = "heads"
    mask: Mask = "none"
    bias: Bias = "none"
    launched: bool = False
    limits: Mapping[str, Limits] = field(default_factory=dict[str, Limits])
    providers: tuple[str, ...] = ()
    slow_providers: tuple[str, ...] = ()
    overhead_dtype: str | None = None
    only_dtype: str | None = None

    @property
    def fixed_dtype(self) -> str | None:
        """The only dtype that it is measured in, if there is one."""
        return self.overhead_dtype or self.only_dtype

    def case(self, dtype: str, device: str) -> Case:
        """The case in one dtype."""
        return Case(
            shape=self.shape,
            dtype=dtype,
            mode=self.mode,
            activation=self.activation,
            causal=self.causal,
            device=device,
            qk_norm=self.qk_norm,
            layout=self.layout,
            mask=self.mask,
            bias=self.bias,
            launched=self.launched,
        )

    def describes(self, case: Case) -> bool:
        """Whether ``case`` is this one in some dtype."""
        return case == self.case(case.dtype, case.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Entries for one kind of device; those of one shape stand together."""

    device: str
    entries: tuple[Entry, ...]

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Those that occur, in order; calling overhead is none of its own."""
        return tuple(dict.fromkeys(e.mode for e in self.entries if e.overhead_dtype is None))
