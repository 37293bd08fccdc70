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
