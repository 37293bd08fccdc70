"""Attention of a run's model: numbers and pictures, in files that reports find."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.source import Integers, Source, Subset
from flashpoint.lab.data.sources import open_source
from flashpoint.lab.evaluation.attention_calls import BLOCK_ROWS
from flashpoint.lab.evaluation.attention_drawing import draw_maps, draw_statistics, require_drawing
from flashpoint.lab.evaluation.attention_maps import map_attention, spread_layers
from flashpoint.lab.evaluation.attention_statistics import AttentionStatistics, measure_attention
from flashpoint.lab.runs.names import MAPS, STATISTICS, STATISTICS_PICTURE
from flashpoint.lab.runs.writing import write_json
from flashpoint.models.cost import num_tokens
from flashpoint.models.vit import ViT, ViTConfig

MAX_BLOCK_BYTES = 2**28
MAX_BATCH, MAX_LAYERS = 64, 5


def inspect_model(
    model: ViT,
    config: DataConfig,
    folder: Path,
    *,
    step: int,
    num_samples: int = 256,
    num_images: int = 4,
    layers: Sequence[int] | None = None,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> AttentionStatistics:
    """Count what attention does over some images, draw it over a few, write both to a folder.

    Args:
        model: on any device.
        config: whose validation data are shown.
        folder: gets statistics.json, statistics.png and maps.png.
        step: of the model's checkpoint; statistics.json says it, and which data these are.
        num_samples: images for the statistics, spread over the data.
        num_images: images to draw maps on, of different classes; 0 for no maps.
        layers: to draw, from 0. None: up to five from the first to the last.
        on_count: told how many images are done, and of how many.
    """
    require_drawing()
    source = open_source(config.validation, "validation", config.labels)
    spread = spread_samples(source.num_samples, num_samples)
    _require_finite(model, next(_images(model, config, Subset(source, spread[:1]))), step)
    statistics = measure_attention(model, _images(model, config, Subset(source, spread), on_count))
    _make(folder)
    content = {"step": step, "data": config.validation, **statistics.to_dict()}
    write_json(folder / STATISTICS, content)
    draw_statistics(statistics, folder / STATISTICS_PICTURE)
    if num_images:
        chosen = Subset(source, one_per_class(source, num_images))
        images = next(_images(model, config, chosen))
        shown = spread_layers(model, MAX_LAYERS) if layers is None else layers
        draw_maps(map_attention(model, images, shown), folder / MAPS)
    return statistics


def spread_samples(available: int, wanted: int) -> Integers:
    """Evenly from the first to the last sample, since sources may be sorted by class.

    Example:
        >>> spread_samples(10, 4).tolist(), spread_samples(2, 4).tolist()
        ([0, 3, 6, 9], [0, 1])
    """
    return np.unique(
        np.linspace(0, available - 1, min(wanted, available)).round().astype(np.int64)
    )


def one_per_class(source: Source, count: int) -> Integers:
    """The first image of every class, then the second ones, up to ``count`` images."""
    order = np.argsort(source.labels, kind="stable")
    sorted_labels = source.labels[order]
    starts = np.searchsorted(sorted_labels, sorted_labels)  # where each one's class begins
    rank = np.arange(len(order)) - starts
    return order[np.lexsort((sorted_labels, rank))][:count]


def batch_size_for(config: ViTConfig) -> int:
    """Images at a time, so that a block of weights of all heads stays within 256 MiB."""
    block = 4 * config.num_heads * min(BLOCK_ROWS, num_tokens(config)) * num_tokens(config)
    return max(1, min(MAX_BATCH, MAX_BLOCK_BYTES // block))


def _images(
    model: ViT,
    config: DataConfig,
    source: Source,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Tensor]:
    """Batches of images on the model's device."""
    device = next(model.parameters()).device
    size = batch_size_for(model.config)
    done = 0
    for batch in EvalBatches(source, config, batch_size=size, device=device).iterate():
        yield batch.images
        done += len(batch.images)
        on_count(done, source.num_samples)


@torch.no_grad()
def _require_finite(model: ViT, image: Tensor, step: int) -> None:
    """Refuse a model that diverged: all its attention is NaN, which counts as nothing."""
    if not model(image).isfinite().all():
        raise InputError(
            f"the model of step {step} diverged: what it makes of an image is not finite. Inspect "
            "another checkpoint."
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}.") from error
