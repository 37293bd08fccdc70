"""A table of small trainings whose scores are raised before relu's fourth power."""

from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table

FOLDER = "shift"
ARMS = {
    "softmax": "softmax",
    "relu4-sum": "relu4/sum",
    **{f"relu4-{shift}-sum": f"relu4+{shift}/sum" for shift in (1, 2, 4)},
    "relu4-learned-sum": "relu4/sum, a learned shift a head, from 4",
}
"""Runs as the page names them."""


@numbers("shift")
def _shift(stored: Stored) -> str:
    """Validation loss by update, and what it is above softmax's at the end."""
    runs = {name: stored.run(f"{FOLDER}/{arm}-seed0") for arm, name in ARMS.items()}
    softmax = runs["softmax"].validation[-1]["loss"]
    rows = []
    for name, run in runs.items():
        losses = [row["loss"] for row in run.validation]
        last = run.validation[-1]
        gap = f"{last['loss'] - softmax:+.3f}" if name != "softmax" else ""
        right = f"{last['token_accuracy']:.1%}"
        rows.append([name, *(f"{loss:.3f}" for loss in losses), gap, right])
    steps = [f"update {row['step']:,}" for row in runs["softmax"].validation]
    return table(["validation loss", *steps, "above softmax", "tokens right"], rows)
