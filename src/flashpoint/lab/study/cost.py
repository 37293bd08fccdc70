"""What trials cost before they are run, from their configs and data."""

from collections.abc import Sequence

from flashpoint.files import json_text
from flashpoint.lab.study.plan import Training, Trial
from flashpoint.lab.training import config_file
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.tasks import task_class


def training_flops(trials: Sequence[Trial]) -> list[float]:
    """Operations of the matrix products in training, of each trial; 0 of measurements.

    Trials that differ in their seed only are counted once: counting opens the data.
    """
    known: dict[str, float] = {}
    found: list[float] = []
    for trial in trials:
        if not isinstance(trial.work, Training):
            found.append(0.0)
            continue
        key = json_text({**trial.work.config, "seed": 0})
        if key not in known:
            known[key] = _flops(trial.work)
        found.append(known[key])
    return found


def _flops(work: Training) -> float:
    config = config_file.parse(work.config)
    task = task_class(config)(config, Ranks())
    return task.samples_until(config.total_steps(task.steps_per_epoch)) * task.flops_per_sample
