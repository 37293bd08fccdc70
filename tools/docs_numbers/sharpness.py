"""Tables of powers of relu, over the length or over their own sum."""

import numpy as np

from docs_numbers.stored import Stored
from docs_numbers.tables import by_seed, difference, numbers, spread, table

POWERS = {"softmax": "softmax", "relu-length": "relu / L", "relu4-sum": "relu4/sum"}
"""Arms of sharpness on images that have run, by their trials."""
SEEN_EPOCHS = (10, 30, 60)


def power_top1(stored: Stored, arm: str) -> np.ndarray:
    """Percent by seed, of sharpness on images."""
    return stored.top1("sharpness", f"images-{arm}")


@numbers("sharpness-images")
def _powers_of_images(stored: Stored) -> str:
    rows = []
    softmax = power_top1(stored, "softmax")
    for arm, name in POWERS.items():
        top1 = power_top1(stored, arm)
        beside = ["", ""] if arm == "softmax" else difference(top1, softmax)
        losses = [_training_loss(stored, f"images-{arm}-", epoch) for epoch in SEEN_EPOCHS]
        losses.append(stored.values("sharpness", f"images-{arm}-", "loss").mean())
        rows.append([name, by_seed(top1), spread(top1), *beside, *(f"{x:.3f}" for x in losses)])
    head = ["attention", "by seed", "top-1", "less softmax", "interval"]
    trained = [f"training loss, epoch {epoch}" for epoch in SEEN_EPOCHS]
    return table([*head, *trained, "validation loss"], rows)


def _training_loss(stored: Stored, arm: str, epoch: int) -> float:
    """The mean over seeds and over an epoch."""
    found = [
        row["loss"]
        for run in stored.runs_of("sharpness", arm)
        for row in run.train
        if epoch - 1 < row["epoch"] <= epoch
    ]
    return float(np.mean(found))
