"""A sensible run for a model that was only named: its config, and a batch for data and device."""

import os
from dataclasses import replace
from typing import Any

from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.training.config import MAX_BATCH, TrainConfig
from flashpoint.lab.training.task_registry import task_class
from flashpoint.models.registry import is_text_model

CPU_OPERATIONS = 1e12
"""Of a step on a CPU: some ten seconds on a few cores."""

_SMALL = {
    "digits": {"image_size": 8, "channels": 1, "augmentation": {"crop": "pad", "pad": 1}},
    "mnist": {"image_size": 28, "channels": 1, "augmentation": {"crop": "pad", "pad": 2}},
    "fashion-mnist": {
        "image_size": 28,
        "channels": 1,
        "augmentation": {"crop": "pad", "pad": 2, "flip": True},
    },
    "cifar10": {
        "image_size": 32,
        "channels": 3,
        "augmentation": {"crop": "pad", "pad": 4, "flip": True},
    },
}
_PHOTOGRAPHS = {
    "image_size": 224,
    "channels": 3,
    "augmentation": {
        "crop": "inception",
        "flip": True,
        "randaug_ops": 2,
        "randaug_magnitude": 10.0,
        "mixup": 0.2,
    },
}
_TEXT = {
    "task": "text",
    "steps": 20_000,
    "batch_size": 16_384,
    "log_every": 50,
    "evaluate_every": 1000,
    "checkpoint_every": 1000,
}


def recipe(model: str, data: str) -> dict[str, Any]:
    """Plain data of a config that trains ``model`` on what is at ``data``.

    Photographs get BigVision's optimizer and its medium augmentation; small sets their own size.
    Documents get the usual recipe of translation, which ``TextConfig`` has by itself.

    Example:
        >>> recipe("vit_ti4", "cifar10:DIR")["data"]["image_size"]
        32
    """
    if is_text_model(model):
        return _TEXT | {"model": {"name": model, "dropout": 0.1}, "data": _both(data)}
    small = _SMALL.get(data.partition(":")[0])
    return {
        "model": {"name": model},
        "data": {**_both(data), **(small or _PHOTOGRAPHS), "workers": _workers()},
        "loss": "softmax",
        "epochs": 60 if small else 90,
        "batch_size": 256 if small else 1024,
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "clip": 1.0},
        "schedule": {"warmup_share": 0.05},
        "log_every": 10,
        "evaluate_every": 200 if small else 1000,
        "checkpoint_every": 200 if small else 1000,
    }


def _workers() -> int:
    """The usual number, or the cores of this process where they are fewer."""
    usual = DataConfig(train="", validation="").workers
    is_known = hasattr(os, "sched_getaffinity")
    return min(usual, len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1)


def _both(data: str) -> dict[str, Any]:
    return {"train": data, "validation": data}


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
