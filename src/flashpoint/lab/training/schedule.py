"""The learning rate as a pure function of the step."""

import math
from dataclasses import dataclass

from flashpoint.errors import InputError
from flashpoint.lab.training.config import ScheduleConfig, ScheduleKind


@dataclass(frozen=True, slots=True)
class Warmup:
    """The way up, and what follows it.

    Attributes:
        steps: on the way up.
        then: how the rate goes down.
    """

    steps: int
    then: ScheduleKind = "cosine"


def warmup_steps(config: ScheduleConfig, total_steps: int) -> Warmup:
    """Steps on the way up as a number, with what follows them.

    Example:
        >>> warmup_steps(ScheduleConfig(warmup_share=0.1), 50).steps
        5
    """
    steps = config.warmup_steps or round(config.warmup_share * total_steps)
    if steps > total_steps:
        raise InputError(
            f"schedule.warmup_steps={steps} is more than the run's {total_steps} steps. Train "
            f"longer, or pass --set schedule.warmup_steps={total_steps // 10}, a tenth of them."
        )
    return Warmup(steps, config.kind)


def learning_rate(step: int, peak: float, warmup: Warmup | int, total: int) -> float:
    """The rate of update number ``step``, counted from 0.

    It rises from 0 to the peak; then a cosine brings it back to 0 at the end, or it falls as the
    inverse square root of the step, wherever the end is.

    Args:
        step: from 0.
        peak: the highest rate.
        warmup: the way up; a number of steps alone is followed by the cosine.
        total: steps of the run.

    Example:
        >>> [round(learning_rate(step, 1.0, 2, 6), 3) for step in range(7)]
        [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0]
        >>> [round(learning_rate(s, 1.0, Warmup(2, "inverse_sqrt"), 6), 3) for s in (1, 2, 8)]
        [0.5, 1.0, 0.5]
    """
    if isinstance(warmup, int):
        warmup = Warmup(warmup)
    if step < warmup.steps:
        return peak * step / warmup.steps
    if warmup.then == "inverse_sqrt":
        return peak * math.sqrt(max(1, warmup.steps) / max(1, step))
    progress = (step - warmup.steps) / max(1, total - warmup.steps)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
