"""What a page holds of runs: their models as graphs, facts about them, and images to click."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from flashpoint.errors import InputError
from flashpoint.lab.browser.graphs import Graphs, make_graphs
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import BrokenImageError, Source
from flashpoint.lab.data.transforms import Viewer, view_of
from flashpoint.lab.evaluation.classification import class_names, data_at
from flashpoint.lab.evaluation.run_inspection import one_per_class
from flashpoint.lab.report.run_report import describe_attention
from flashpoint.lab.runs.run_files import RunFiles, read_runs
from flashpoint.lab.training.run_folder import Run
from flashpoint.models.cost import attention_flops, forward_flops, num_parameters, num_tokens
from flashpoint.models.vit import ViT

MOST_WEIGHTS = 2**25
"""Attention weights that a page holds of one model and one image: 128 MiB."""
DIGITS, DIGITS_SIDE = "digits", 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A run, its model on the CPU, and the step of its weights."""

    run: Run
    model: ViT
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """All that is special about one page.

    Attributes:
        facts: plain data for its scripts.
        graphs: of each model.
    """

    facts: dict[str, Any]
    graphs: tuple[Graphs, ...]


def gather(models: Sequence[Opened], data: str | None = None, num_samples: int = 20) -> Contents:
    """What a page of these models needs; all of them look at the same images.

    Args:
        models: of runs, in the order of the page.
        data: where images to click come from. None: the first run's validation data.
        num_samples: how many of them, of different classes.
    """
    _require_alike(models)
    first = models[0]
    config = data_at(first.run.config.data, data)
    source = open_source(config.validation, "validation", config.labels)
    files = read_runs([opened.run.path for opened in models])
    vit = first.model.config
    facts = {
        "image_size": vit.image_size,
        "channels": vit.channels,
        "grid": vit.grid,
        "has_class_token": vit.pool == "token",
        "classes": list(class_names(first.run, first.model)),
        "view": view_of(source, config),
        "is_drawn": _is_drawn(first.run.config.data),
        "differences": _differences(models),
        "models": [_model_facts(*pair) for pair in zip(models, files, strict=True)],
        "samples": _samples(source, config, num_samples),
    }
    return Contents(facts=facts, graphs=tuple(make_graphs(opened.model) for opened in models))


def _require_alike(models: Sequence[Opened]) -> None:
    """Refuse models that cannot look at one picture, or would fill the memory with weights."""
    kinds = {_kind(opened): opened.run.path for opened in models}
    if len(kinds) > 1:
        (kind, path), (other, other_path), *_ = kinds.items()
        raise InputError(
            f"{path} takes {kind[0]}, {other_path} {other[0]}: one page shows one picture to all "
            "models. Make a page for each."
        )
    for opened in models:
        config = opened.model.config
        weights = config.depth * config.num_heads * num_tokens(config) ** 2
        if weights > MOST_WEIGHTS:
            raise InputError(
                f"{opened.run.path} has {weights:,} attention weights for one image, and a page "
                f"shows at most {MOST_WEIGHTS:,}. Take a model with fewer tokens."
            )


def _kind(opened: Opened) -> tuple[str, tuple[str, ...]]:
    """What a model takes in words, and all that follows from it."""
    config, data = opened.model.config, opened.run.config.data
    classes = class_names(opened.run, opened.model)
    words = (
        f"{config.image_size} x {config.image_size} images with {config.channels} channels in "
        f"patches of {config.patch_size} of {len(classes)} classes"
    )
    return f"{words}, pool {config.pool}, view {data.evaluation_view}", tuple(classes)


def _is_drawn(config: DataConfig) -> bool:
    """Whether images are those of scikit-learn's digits, which a visitor may draw."""
    is_as_stored = config.image_size == DIGITS_SIDE and config.channels == 1
    return is_as_stored and config.validation.partition(":")[0] == DIGITS


def _differences(models: Sequence[Opened]) -> list[str]:
    """Settings other than attention that are not the same in all models."""
    configs = [opened.model.config for opened in models]
    return [
        field.name
        for field in fields(configs[0])
        if field.name != "attention"
        and len({str(getattr(config, field.name)) for config in configs}) > 1
    ]


def _model_facts(opened: Opened, files: RunFiles) -> dict[str, Any]:
    config = opened.model.config
    top1 = [
        line["top1"]
        for line in opened.run.metrics
        if line["kind"] == "validation" and line["step"] == opened.step
    ]
    return {
        "name": files.name,
        "attention": describe_attention(files),
        "loss": opened.run.config.loss,
        "top1": top1[-1] if top1 else None,
        "parameters": num_parameters(opened.model),
        "layers": config.depth,
        "heads": config.num_heads,
        "tokens": num_tokens(config),
        "attention_share": attention_flops(config) / forward_flops(config),
    }


def _samples(source: Source, config: DataConfig, count: int) -> list[dict[str, str]]:
    """Some images of different classes, as validation sees them: names, and pixels [C, S, S]."""
    view = Viewer(view_of(source, config), config.image_size, config.channels)
    found: list[dict[str, str]] = []
    for index in one_per_class(source, 2 * count).tolist():  # some may be broken
        try:
            image, label = source.read(index)
        except BrokenImageError:
            continue
        pixels = base64.b64encode(view(image, 0).tobytes()).decode()
        found.append({"name": source.class_names[label], "pixels": pixels})
    return found[:count]
