"""A sensible run that adapts a softmax run's model, from that run's own config."""

from typing import Any

from flashpoint.convert.calibrate import calibrated_spec
from flashpoint.errors import InputError
from flashpoint.lab.runs.checkpoints import step_folder
from flashpoint.lab.runs.names import CHECKPOINTS
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training.run_folder import Run
from flashpoint.layers.spec import AttentionSpec

MATCHED_SHARE = 0.2
"""Of all updates, those that match layers; the others fine-tune the whole model."""
RATE = 0.1
"""Of the teacher's peak learning rate, what fine-tuning takes."""
WARMUP_SHARE = 0.1


def adapting_values(run: Run, step: int, attention: str, total: int) -> dict[str, Any]:
    """Plain data of the config that adapts a run's model; ``config_file.parse`` reads it.

    Args:
        run: the teacher's; data, sizes, batches and precision are its own.
        step: of its checkpoint.
        attention: what to compute, in a word.
        total: updates, those that match layers included.
    """
    if run.config.task == "text":
        raise InputError(f"{run.path} is a run on text, and only those on images can be adapted.")
    spec = calibrated_spec(AttentionSpec.parse(attention))
    values = plain(run.config)
    match_steps = round(MATCHED_SHARE * total)
    values["model"]["attention"] = plain(spec)
    values["optimizer"]["lr"] *= RATE
    values["schedule"] |= {"warmup_steps": 0, "warmup_share": WARMUP_SHARE}
    return values | {
        "task": "adapt",
        "weights": str(step_folder(run.path / CHECKPOINTS, step)),
        "epochs": None,
        "steps": total - match_steps,
        "adapt": {"match_steps": match_steps},
    }
