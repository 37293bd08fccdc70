"""Training steps by the recipe of ImageNet-1k, on images that are there and on those of shards."""

import time
from collections.abc import Iterator
from itertools import repeat
from typing import cast

import torch

from flashpoint.lab.data.config import AugmentationConfig, DataConfig
from flashpoint.lab.training.config import ModelConfig
from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.step import Step
from flashpoint.lab.training.task import Batch, Objective, Task
from flashpoint.lab.training.vision import VisionConfig, VisionTask
from flashpoint.lab.training.waiting import Waiting

AUGMENTATION = AugmentationConfig(
    crop="inception",
    min_area=0.05,
    flip=True,
    randaug_ops=2,
    randaug_magnitude=15.0,
    mixup=0.5,
)
SETTINGS = {
    "num_classes": 1000,
    "head_bias": -6.9,
    "pool": "token",
    "positions": "learned",
    "pre_logits": True,
    "qk_norm": "layer",
    "gelu": "tanh",
    "attention": "relu",
}
"""As configs/vit_i1k.yaml has them."""

_WARM_STEPS = 5


def make_task(model: str, batch_size: int, data: DataConfig, device: torch.device) -> VisionTask:
    """The recipe as a task."""
    config = VisionConfig(
        model=ModelConfig(name=model, settings=SETTINGS),
        data=data,
        loss="sigmoid",
        steps=1,
        batch_size=batch_size,
        precision="bf16" if device.type == "cuda" else "fp32",
        compile="default" if device.type == "cuda" else "none",
        device="cuda" if device.type == "cuda" else "cpu",
    )
    return VisionTask(config, Ranks(device=device))


def make_step(task: VisionTask, device: torch.device) -> Step:
    """An update of a fresh model."""
    config = task.config
    torch.manual_seed(0)
    shared = Shared.of(cast(Task, task), Ranks(device=device))
    optimizer = make_optimizer(shared.module, config.optimizer, device, captured=False)
    step = Step(cast(Objective, task), shared, optimizer)
    step.set_rate(1e-4)
    return step


def step_rates(
    task: VisionTask, device: torch.device, seconds: float
) -> tuple[float, float, float]:
    """Images a second on a batch that stays and on those of shards, and the share of time that
    the latter wait."""
    step = make_step(task, device)
    batches = task.batches(0)
    kept = tuple(tensor.clone() for tensor in next(batches))
    resident, _ = _rate(step, repeat(kept), device, seconds)
    fed, wait = _rate(step, batches, device, seconds)
    again, _ = _rate(step, repeat(kept), device, seconds)
    batches.close()
    return (resident + again) / 2, fed, wait


def _rate(
    step: Step, batches: Iterator[Batch], device: torch.device, seconds: float
) -> tuple[float, float]:
    """Images a second, and the share of time spent waiting for them."""
    for _ in range(_WARM_STEPS):
        step(next(batches))
    step.tally.read()  # waits for the device
    waiting = Waiting(device)
    begun, images = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or not images:
        with waiting.measured():
            batch = next(batches)
        step(batch)
        images += len(batch[0])
    step.tally.read()
    elapsed = time.perf_counter() - begun
    return images / elapsed, waiting.read() / elapsed
