"""Seconds of a training step of several configs, in turns, so that all share every disturbance."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from flashpoint.lab.training import config_file
from flashpoint.lab.training.config import TrainConfig
from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.ranks import Ranks, choose_device
from flashpoint.lab.training.sharing import Shared, check_sharing
from flashpoint.lab.training.step import CapturedStep, Step
from flashpoint.lab.training.stopwatch import Stopwatch
from flashpoint.lab.training.task import Batch, Task
from flashpoint.lab.training.task_registry import task_class


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Median seconds of a step, as "NAME_s" for every config.

    Args:
        options: configs by name; steps that are timed at once; rounds, in each of which every
            config has its turn.
    """
    steps = {name: _prepare(config) for name, config in options["configs"].items()}
    watch = Stopwatch(choose_device("auto"))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options["rounds"] + 1):
        order = list(steps)
        for name in order if number % 2 else reversed(order):
            start = watch.read()
            for _ in range(options["steps"]):
                steps[name]()
            if number:  # the first round warms up
                times[name].append((watch.read() - start) / options["steps"])
    return {f"{name}_s": statistics.median(found) for name, found in times.items()}


def _prepare(values: Mapping[str, Any]) -> Callable[[], None]:
    """A step on one batch of a config's data, compiled or captured if the config says so."""
    config: TrainConfig = config_file.parse(values)
    ranks = Ranks(device=choose_device(config.device))
    check_sharing(config, ranks)
    task: Task = task_class(config)(config, ranks)
    torch.manual_seed(config.seed)
    model = Shared.of(task, ranks)
    optimizer = make_optimizer(
        model.module, config.optimizer, ranks.device, captured=config.is_captured
    )
    step = Step(task, model, optimizer)
    step.set_rate(config.optimizer.lr)
    batch: Batch = next(task.batches(0))
    if config.is_captured:
        captured = CapturedStep(step, batch)
        return lambda: captured(batch)
    return lambda: step(batch)
