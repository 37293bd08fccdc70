"""A sensible run for a model that was only named: no config file is needed to begin."""

import os
from typing import Any

from flashpoint.lab.data.config import DataConfig
from flashpoint.models.registry import is_text_model

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
