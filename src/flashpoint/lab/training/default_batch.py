"""The batch of a run for which nobody named one: no larger than the data, and fit for a CPU."""

from dataclasses import replace

from flashpoint.lab.training.config import MAX_BATCH, TrainConfig
from flashpoint.lab.training.task_registry import task_class

CPU_OPERATIONS = 1e12
"""Of a step on a CPU: some ten seconds on a few cores."""


def choose_batch(config: TrainConfig, device: str, num_processes: int) -> tuple[TrainConfig, str]:
    """The config with a batch of at most its own size, and a line that says why.

    It follows from the config, the data and the kind of device alone, so that the same command
    means the same run tomorrow.

    Args:
        config: whose batch suits a GPU and a large data set.
        device: "cpu" or "cuda", where the run computes.
        num_processes: that share a batch.
    """
    task = task_class(config)
    samples, operations = task.measure(config)
    most = min(config.batch_size, samples)
    if device == "cpu":
        most = min(most, int(CPU_OPERATIONS / operations))
    size = 1 << (max(1, most).bit_length() - 1)
    while not (fitting := task.round_batch(config, size, num_processes)):
        size *= 2
        if size > MAX_BATCH:  # none that they can share: the task says what is wrong
            return config, ""
    said = (
        f"no batch size was given: taking {fitting:,}, for {samples:,} training {task.unit} and "
        f"{device}. Pass --set batch_size=N for another."
    )
    return replace(config, batch_size=fitting), said
