"""Tables of powers of relu, over the length or over their own sum."""

from collections.abc import Mapping

import numpy as np

from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import behind, by_seed, difference, numbers, spread, table

POWERS = {"softmax": "softmax", "relu-length": "relu / L", "relu4-sum": "relu4/sum"}
"""Arms of sharpness on images that have run, by their trials."""
SEEN_EPOCHS = (10, 30, 60)
POWER_NAMES = {
    "relu": "relu",
    "relu2": "relu2",
    "relu3": "relu3",
    "relu4": "relu4",
    "relu-p6": "relu^6",
}
RULES = {"length": " / L", "sum": "/sum"}
MIXED = {
    "relu4-sum-softmax-in-cross": "relu4/sum, softmax in cross-attention",
    "softmax-relu4-sum-in-cross": "softmax, relu4/sum in cross-attention",
}
RAISED = {"relu4-2-sum": "relu4+2/sum"}
SHIFTS = {**RAISED, "relu4-4-sum": "relu4+4/sum"}
ALL_POWERS = {
    "softmax": "softmax",
    **{
        f"{trial}-{rule}": f"{name}{sign}"
        for rule, sign in RULES.items()
        for trial, name in POWER_NAMES.items()
    },
}


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


@numbers("sharpness-documents")
def _powers_of_documents(stored: Stored) -> str:
    return _documents(stored, {**ALL_POWERS, **SHIFTS, **MIXED})


@numbers("sharpness-mixed")
def _mixed(stored: Stored) -> str:
    """Softmax and relu4/sum alone and with each other, and raised scores."""
    whole = {arm: ALL_POWERS[arm] for arm in ("softmax", "relu4-sum")}
    return _documents(stored, {**whole, **RAISED, **MIXED})


def _documents(stored: Stored, arms: Mapping[str, str]) -> str:
    rows = []
    for arm, name in arms.items():
        seeds = stored.seeds_of("sharpness", f"documents-{arm}-")
        bleu, softmax, losses = (
            stored.values("sharpness", f"documents-{trial}-", number, seeds)
            for trial, number in (
                (arm, "translation.bleu"),
                ("softmax", "translation.bleu"),
                (arm, "loss"),
            )
        )
        gap = "" if arm == "softmax" else behind(bleu, softmax)
        rows.append(
            [
                *(name, by_seed(losses), f"{losses.mean():.2f}"),
                *(by_seed(bleu, ".1f"), f"{bleu.mean():.1f}", gap),
            ]
        )
    head = ["attention", "validation loss by seed", "mean", "BLEU by seed", "mean"]
    return table([*head, "less softmax"], rows)


@numbers("sharpness-recall")
def _powers_of_recall(stored: Stored) -> str:
    def found(trial: str) -> np.ndarray:
        return PERCENT * stored.values("sharpness", f"retrieval-{trial}-", "pairs128.exact")

    softmax = found("softmax")
    rows = []
    for arm, name in {**ALL_POWERS, **RAISED}.items():
        beside = ["", ""] if arm == "softmax" else difference(found(arm), softmax, 1)
        rows.append([name, by_seed(found(arm), ".0f"), f"{found(arm).mean():.1f}", *beside])
    head = ["attention", "percent by seed", "mean", "less softmax", "interval"]
    return table(head, rows)


def _training_loss(stored: Stored, arm: str, epoch: int) -> float:
    """The mean over seeds and over an epoch."""
    found = [
        row["loss"]
        for run in stored.runs_of("sharpness", arm)
        for row in run.train
        if epoch - 1 < row["epoch"] <= epoch
    ]
    return float(np.mean(found))
