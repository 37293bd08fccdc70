"""What came out of a trial, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["finished", "running", "stopped", "failed", "waiting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A trial's folder, read.

    Attributes:
        name: of the trial.
        factors: of the trial.
        status: "running" is what began and has not ended while a command runs the study,
            "stopped" the same where none does.
        numbers: by name. Of a training: those of the last validation ("top1", "loss", "bleu"),
            of the record ("seconds", "samples_per_s", "flops", "num_parameters", "train_loss",
            "peak_memory_bytes", "skipped"), and "NAME.key" of every evaluation. Of a measurement:
            its own. NaN is what came out not finite, as the loss of a run that diverged.
        reason: why it failed; None otherwise.
    """

    name: str
    factors: Mapping[str, str | int | float]
    status: Status
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str | None = None
