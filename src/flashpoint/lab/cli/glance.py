"""How far a run is, from its files, while another process trains it."""

from pathlib import Path
from typing import NamedTuple

from flashpoint.errors import FlashpointError
from flashpoint.lab.runs.metrics import read_metrics
from flashpoint.lab.runs.names import CONFIG, RECORD
from flashpoint.lab.runs.run_files import number, read_mapping


class Glance(NamedTuple):
    """What the files of a run say; None is not known yet."""

    share: float = 0.0
    step: int = 0
    loss: float | None = None
    images_per_s: float | None = None
    accuracies: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def total(self) -> int | None:
        """Steps of the whole run."""
        return round(self.step / self.share) if self.share else None

    @property
    def seconds_left(self) -> float | None:
        """Of training, at the speed so far."""
        return self.seconds * (1 / self.share - 1) if self.share else None


def look_at(folder: Path) -> Glance:
    """Read a run's files; half-written ones are as good as not there."""
    try:
        config = read_mapping(folder / CONFIG)
        lines = read_metrics(folder)
    except FlashpointError:
        return Glance()
    train = [line for line in lines if line.get("kind") == "train"]
    accuracies = [number(line, "top1") for line in lines if line.get("kind") == "validation"]
    last = train[-1] if train else {}
    done, total = (
        (number(last, "epoch"), number(config, "epochs"))
        if config.get("epochs")
        else (number(last, "step"), number(config, "steps"))
    )
    is_finished = (folder / RECORD).is_file()
    return Glance(
        share=1.0 if is_finished else min((done or 0.0) / (total or 1.0), 1.0),
        step=int(number(last, "step") or 0),
        loss=number(last, "loss"),
        images_per_s=number(last, "images_per_s"),
        accuracies=tuple(a for a in accuracies if a is not None),
        seconds=number(last, "seconds") or 0.0,
    )
