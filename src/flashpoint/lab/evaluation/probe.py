"""The few-shot probe of a model on a source of images."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.data.config import AugmentationConfig, DataConfig
from flashpoint.lab.data.image_kinds import is_held_out_of, open_sources
from flashpoint.lab.data.image_source import Subset
from flashpoint.lab.evaluation.few_shot import (
    Features,
    ProbeResult,
    choose_shots,
    few_shot_accuracy,
)
from flashpoint.lab.evaluation.frozen import frozen
from flashpoint.models.vit import ViT

Count = Callable[[int, int], None]
"""Told how many images are done, and of how many."""


def probe_config(config: DataConfig, where: str, classes: str | None = None) -> DataConfig:
    """How the probe reads images: both sides to 256/224 of the size, then the center; as they
    are if they live in memory at the model's size; never augmented.

    A file with their classes takes the place of the run's, which holds for its own data only.
    """
    is_own = where == config.train or is_held_out_of(config.validation, where)
    return replace(
        config,
        train=where,
        validation=where,
        labels=classes or (config.labels if is_own else None),
        evaluation_view="squash",
        augmentation=AugmentationConfig(),
    )


def probe(
    model: ViT,
    config: DataConfig,
    *,
    shots: int,
    seeds: Sequence[int],
    batch_size: int = 256,
    on_count: Count = lambda done, total: None,
) -> ProbeResult:
    """Probe a frozen model: train on ``shots`` images a class of one split, test on the other.

    Args:
        model: whose features are read, on its device.
        config: of ``probe_config``; its splits have the same classes.
        shots: training images a class.
        seeds: each chooses its own images; the paper takes 0, 1 and 2.
        batch_size: images at a time.
        on_count: for a progress bar.
    """
    train, test = open_sources(config)
    chosen = [choose_shots(train.labels, train.num_classes, shots, seed) for seed in seeds]
    union = np.unique(np.concatenate(chosen))
    total = len(union) + test.num_samples
    device = next(model.parameters()).device
    batches = EvalBatches(Subset(train, union), config, batch_size=batch_size, device=device)
    few = extract_features(model, batches, lambda done: on_count(done, total))
    if len(few.labels) < len(union):
        raise InputError(
            f"{len(union) - len(few.labels)} of the {len(union)} chosen training images cannot be "
            f"read: {batches.broken[-1]}. Remove them from the data."
        )
    batches = EvalBatches(test, config, batch_size=batch_size, device=device)
    tested = extract_features(model, batches, lambda done: on_count(len(union) + done, total))
    picked = [few.take(np.searchsorted(union, index)) for index in chosen]
    return ProbeResult(
        shots=shots,
        num_classes=train.num_classes,
        num_test=len(tested.labels),
        seeds=tuple(seeds),
        accuracies=tuple(few_shot_accuracy(p, tested, train.num_classes) for p in picked),
        broken=(*train.damage, *batches.broken),
    )


def extract_features(
    model: ViT, batches: EvalBatches, on_done: Callable[[int], None] = lambda done: None
) -> Features:
    """What the head reads of every image, in fp32 on the CPU; broken images are left out."""
    values: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    done = 0
    with frozen(model):
        for batch in batches.iterate():
            values.append(model.features(batch.images).float().cpu())
            labels.append(batch.labels.cpu())
            done += len(batch.labels)
            on_done(done)
    return Features(values=torch.cat(values), labels=torch.cat(labels))
