"""Accuracy and loss of a classifier, also on data whose classes are only some of its own.

``evaluate_run`` is what ``flashpoint evaluate`` does, for programs; ``classify`` takes any model.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.image_folder import FolderSource
from flashpoint.lab.data.image_kinds import is_held_out_of, open_source
from flashpoint.lab.data.image_source import Source
from flashpoint.lab.evaluation.class_matching import (
    ClassMatch,
    match_classes,
    require_same_classes,
)
from flashpoint.lab.evaluation.frozen import frozen
from flashpoint.lab.runs.beginning import read_data
from flashpoint.lab.training.run_folder import Run
from flashpoint.lab.training.vision import ClassificationSums, Loss
from flashpoint.models.vit import ViT


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


def evaluate_run(
    run: Run,
    model: ViT,
    *,
    data: str | None = None,
    classes: str | None = None,
    is_matching: bool = False,
    batch_size: int = 256,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> Classification:
    """Accuracy and loss of a run's model, counted and computed as in training.

    Args:
        run: gives the data, the loss, the precision and the names of the classes.
        model: of ``run.load_model``, on any device.
        data: another place than the run's validation data.
        classes: a file with the data's classes, one a line in the order of their labels.
        is_matching: only classes that model and data share may answer, found by name.
        batch_size: images at a time.
        on_count: told how many images are done, and of how many.
    """
    config = data_at(run.config.data, data, classes)
    source = open_source(config.validation, "validation", config.labels)
    _require_held_out(run, config, source)
    known = class_names(run, model)
    match = match_classes(known, source.class_names) if is_matching else None
    if match is None:
        require_same_classes(known, source.class_names)
    device = next(model.parameters()).device
    return classify(
        model,
        EvalBatches(source, config, batch_size=batch_size, device=device),
        loss=run.config.loss,
        match=match,
        is_bf16=run.config.precision == "bf16",
        on_count=on_count,
    )


def data_at(config: DataConfig, where: str | None, classes: str | None = None) -> DataConfig:
    """The run's validation data, or those at another place, read in the same way.

    A file with their classes takes the place of the run's, which holds for its own data only. Of a
    folder without splits that the run was trained on, only the images that it held out are meant.
    """
    if where is None or where == config.validation or is_held_out_of(config.validation, where):
        return replace(config, labels=classes or config.labels)
    return replace(config, validation=where, labels=classes)


def _require_held_out(run: Run, config: DataConfig, source: Source) -> None:
    """Refuse images that are held out of a folder now, if the run held out others."""
    kept = read_data(run.path).get("held_out")
    if config.validation != run.config.data.validation or not isinstance(source, FolderSource):
        return
    if kept is not None and source.digest != kept:
        raise InputError(
            f"{source.root} has other images than {run.path} began with: some that are held out "
            "now may have been trained on. Bring the images back, or pass another --data."
        )


def class_names(run: Run, model: ViT) -> Sequence[str]:
    """What the model's outputs mean: as the run noted it when it began.

    Outputs behind the last class of its data are numbered.
    """
    noted: list[str] = read_data(run.path).get("classes", [])
    num_classes = model.config.num_classes
    return [*noted, *map(str, range(len(noted), num_classes))][:num_classes]
