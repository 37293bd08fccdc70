"""The learning rate as a pure function of the step."""

import math

from flashpoint.errors import InputError
from flashpoint.training.config import ScheduleConfig


def warmup_steps(config: ScheduleConfig, total_steps: int) -> int:
    """Steps on the way up, as a number.

    Example:
        >>> warmup_steps(ScheduleConfig(warmup_share=0.1), 50)
        5
    """
    steps = config.warmup_steps or round(config.warmup_share * total_steps)
    if steps > total_steps:
        raise InputError(
            f"schedule.warmup_steps={steps} is more than the run's {total_steps} steps. "
            "Lower it, or set warmup_share."
        )
    return steps


def learning_rate(step: int, peak: float, warmup: int, total: int) -> float:
    """The rate of update number ``step``, counted from 0: up from 0, then a cosine to 0.

    Example:
        >>> [round(learning_rate(step, 1.0, 2, 6), 3) for step in range(7)]
        [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if step < warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
