"""record.json: what came out of a run, and where and with what it was made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashpoint.lab.runs.names import RECORD
from flashpoint.lab.runs.stored import exists, parse_json, read_json
from flashpoint.lab.runs.writing import json_bytes, replace_file

_ADVICE = "Restore it, or remove it and give the command that trained the run again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The end of a run.

    Attributes:
        steps, epochs, samples: how long it trained.
        unit: what samples are called.
        seconds: of training, without validation, checkpoints and pauses.
        samples_per_s: over all of it.
        num_parameters: of the model.
        flops: operations of the matrix products in training.
        utilisation: their rate as a share of the device's at large products; None on the CPU.
        peak_memory_bytes: of the GPU's memory; None on the CPU.
        train_loss: the last logged one.
        validation: numbers at the end; None is one that is not finite.
        best: numbers and step of the best checkpoint.
        skipped: updates left out, as their loss or gradient was not finite.
        notes: what the task adds.
        environment: device, versions, commit, time.
    """

    steps: int
    epochs: float
    samples: int
    unit: str
    seconds: float
    samples_per_s: float
    num_parameters: int
    flops: float
    utilisation: float | None
    peak_memory_bytes: int | None
    train_loss: float | None
    validation: Mapping[str, int | float | None]
    best: Mapping[str, int | float | None]
    skipped: int
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> str:
        """As it stands in a run's folder."""
        return json_bytes(asdict(self)).decode()

    @classmethod
    def parse(cls, text: str) -> "Record":
        """From what ``to_json`` gave."""
        return parse_json(text, cls, RECORD)

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """The record of a run, or None while it has not ended."""
        file = folder / RECORD
        return read_json(file, cls, _ADVICE) if exists(file) else None

    def write(self, folder: Path) -> None:
        """Put record.json into a run's folder, whole."""
        replace_file(folder / RECORD, self.to_json().encode())


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """What was measured in a line of validation."""
    return {name: value for name, value in line.items() if name not in ("kind", "step")}
