"""What Flashpoint promises for a case: times and memory next to named rivals."""

from dataclasses import dataclass


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
