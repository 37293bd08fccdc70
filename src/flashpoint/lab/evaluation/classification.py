"""Accuracy and loss of a classifier, also on data whose classes are only some of its own."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.evaluation.class_matching import ClassMatch
from flashpoint.lab.evaluation.frozen import frozen
from flashpoint.lab.training.vision import ClassificationSums, Loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Classification:
    """What came out.

    Attributes:
        top1, top5: share of images whose class is the first guess, or among the first five.
        loss: mean cross-entropy over the classes that may answer.
        num_images: that were counted.
        num_classes: that may answer.
        left_out: images whose class the model does not know.
        unmatched: those classes.
        broken: images that could not be read, and why.
    """

    top1: float
    top5: float
    loss: float
    num_images: int
    num_classes: int
    left_out: int = 0
    unmatched: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file."""
        return asdict(self)


def classify(
    model: nn.Module,
    batches: EvalBatches,
    *,
    loss: Loss,
    match: ClassMatch | None = None,
    is_bf16: bool = False,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> Classification:
    """Show a model all images once and count.

    Args:
        model: from images to logits, on the device of the batches.
        batches: every image once.
        loss: the cross-entropy that the model was trained with.
        match: which outputs may answer for which labels. None: output k for label k.
        is_bf16: compute in bf16 as training did.
        on_count: told how many images are done, and of how many.
    """
    device = next(model.parameters()).device
    sums = ClassificationSums(loss, device)
    seen = counted = num_classes = 0
    with frozen(model), torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
        for batch in batches.iterate():
            logits, labels = model(batch.images), batch.labels
            seen += len(labels)
            if match is not None:
                logits, labels = match.restrict(logits, labels)
            num_classes = logits.shape[1]
            counted += len(labels)
            sums.add(logits, labels)
            on_count(seen, batches.num_samples)
    if not counted:
        raise InputError(f"none of the {batches.num_samples} images has a class of the model.")
    return Classification(
        **sums.numbers(),
        num_images=counted,
        num_classes=num_classes,
        left_out=seen - counted,
        unmatched=() if match is None else match.unmatched,
        broken=tuple(batches.broken),
    )
