"""What trials are made of: configs by scale, as plain data, and changes of them."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from flashpoint.lab.data.text.recall import NUM_PIECES
from flashpoint.lab.study.plan import (
    Evaluation,
    Factor,
    Measurement,
    Scale,
    Settings,
    Training,
    Trial,
)

Config = dict[str, Any]

NEVER = 1_000_000
"""Updates in a row that may fail: a run that diverges is a result, not a failure."""

SHORTEST = 32
"""Tokens of the shortest samples where documents are cut to several lengths."""

GAMMA = 8.0
"""Where that of text's relu attention starts at "small"."""

SMALL_CORPUS = (
    "At small: layers of width 256 on manuals and help pages, 1.8 M tokens a side, where the "
    "paper has IWSLT14 and Europarl7. Samples are cut to the length, to half of it, ... to 32 "
    "tokens: on so few documents, long samples alone do not teach which words belong together."
)
SMALL_GAMMA = (
    "At small relu's gamma starts at 8, not at the lemma's 1: that wants values of mean zero, and "
    "what all tokens of a text share is multiplied by a row's sum, about sqrt(n / pi), 13 at 512."
)
SMALL_IMAGES = (
    "At small: CIFAR-10, 32 pixels, where the paper has ImageNet-21k for 30 epochs and "
    "ImageNet-1k for 300, at 224; softmax's loss instead of a sigmoid for each class, no randaug, "
    "batches of 128, LayerScale from 0.1."
)
SMALL_VIT = (
    "ViTs of width 192 and depth 6 on patches of 4 (64 tokens), 10 epochs, where the paper has "
    "S/32, S/16 and S/8."
)

_VISION: Mapping[Scale, Config] = {
    "smoke": {
        "model": {
            **{"name": "vit", "patch_size": 2, "width": 32, "depth": 2, "num_heads": 2},
            **{"mlp_dim": 64, "attention": "relu"},
        },
        "data": {"image_size": 8, "channels": 1},
        "loss": "softmax",
        "steps": 40,
        "batch_size": 64,
        "optimizer": {"lr": 6e-3, "weight_decay": 0.1, "clip": 1.0},
        "schedule": {"warmup_share": 0.1},
        "precision": "fp32",
        **{"log_every": 10, "evaluate_every": 40, "checkpoint_every": 40},
    },
    "small": {
        "model": {
            **{"name": "vit", "patch_size": 4, "width": 192, "depth": 6},
            **{"num_heads": 3, "mlp_dim": 768, "layer_scale": 0.1, "attention": "relu"},
        },
        "data": {
            **{"image_size": 32, "channels": 3},
            "augmentation": {"crop": "pad", "pad": 4, "flip": True, "mixup": 0.5},
        },
        "loss": "softmax",
        "epochs": 10,
        "batch_size": 128,
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "clip": 1.0},
        "schedule": {"warmup_share": 0.1},
        **{"precision": "bf16", "compile": "graphs_only"},
        **{"log_every": 100, "evaluate_every": NEVER, "checkpoint_every": NEVER},
    },
    "paper": {  # configs/vit_i1k.yaml
        "model": {
            **{"name": "vit_s16", "num_classes": 1000, "head_bias": -6.9, "pool": "token"},
            **{"positions": "learned", "pre_logits": True, "gelu": "tanh", "attention": "relu"},
        },
        "data": {
            **{"image_size": 224, "channels": 3, "workers": 16},
            "augmentation": {
                **{"crop": "inception", "min_area": 0.05, "flip": True},
                **{"randaug_ops": 2, "randaug_magnitude": 15.0, "mixup": 0.5},
            },
        },
        "loss": "sigmoid",
        "epochs": 300,
        "batch_size": 4096,
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "clip": 1.0},
        "schedule": {"warmup_steps": 10_000},
        **{"precision": "bf16", "compile": "default"},
        **{"log_every": 50, "evaluate_every": 2500, "checkpoint_every": 500},
    },
}

_TEXT: Mapping[Scale, Config] = {
    "smoke": {
        "model": {
            **{"name": "reluformer", "width": 32, "encoder_depth": 1, "decoder_depth": 1},
            **{"num_heads": 2, "mlp_dim": 64},
        },
        "data": {"length": 32, "join": False, "pieces": {"vocabulary_size": NUM_PIECES}},
        "steps": 30,
        "batch_size": 1024,
        "optimizer": {"lr": 2e-3},
        "schedule": {"kind": "cosine", "warmup_share": 0.1, "warmup_steps": 0},
        "precision": "fp32",
        **{"log_every": 10, "evaluate_every": 30, "checkpoint_every": 30},
    },
    "small": {
        "model": {
            **{"name": "reluformer", "width": 256, "encoder_depth": 3, "decoder_depth": 3},
            **{"num_heads": 4, "mlp_dim": 1024, "dropout": 0.1},
        },
        "data": {
            **{"length": 512, "join": False, "resolutions": 5},
            "pieces": {"vocabulary_size": 8192},
        },
        "steps": 2000,
        "batch_size": 16_384,
        "optimizer": {"lr": 3e-3},
        "schedule": {"kind": "cosine", "warmup_share": 0.1, "warmup_steps": 0},
        **{"precision": "bf16", "compile": "graphs_only"},
        **{"log_every": 100, "evaluate_every": NEVER, "checkpoint_every": NEVER},
    },
    "paper": {
        "model": {"name": "reluformer_base", "dropout": 0.1},
        "data": {"length": 512, "join": True, "pieces": {"vocabulary_size": 32_000}},
        "steps": 100_000,
        "batch_size": 32_768,
        "optimizer": {"lr": 7e-4},
        "schedule": {"kind": "inverse_sqrt", "warmup_steps": 4000},
        **{"precision": "bf16", "compile": "default"},
        **{"log_every": 50, "evaluate_every": 2500, "checkpoint_every": 1000},
    },
}


def vision(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """The config of a ViT on the images of a scale, with some dotted names changed."""
    base = _VISION[settings.scale] | {"task": "vision", "seed": seed, "max_bad_steps": NEVER}
    return changed(base, {**_both(settings.images), **changes})


def step_times(
    settings: Settings,
    factors: Mapping[str, Factor],
    seed: int,
    changes: Mapping[str, Mapping[str, Any]],
    turns: Mapping[str, int],
) -> Trial:
    """A trial that runs alone and times training steps of ViTs, by name, in turns.

    Beyond "smoke" they are compiled, at "small" too, where trainings are not: else softmax's norms
    and a gate would be timed as PyTorch's single kernels do them.
    """
    compiler = {"compile": "graphs"} if settings.scale == "small" else {}
    configs = {
        name: vision(settings, seed, {**change, **compiler}) for name, change in changes.items()
    }
    work = Measurement(
        function="step_time",
        options={"configs": configs, **turns},
        is_alone=True,
    )
    factors = {**factors, "seed": seed}
    return Trial(name=name_of(factors), factors=factors, work=work)


def text(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """The config of a ReLUFormer on the documents of a scale, with some dotted names changed."""
    base = _TEXT[settings.scale] | {"task": "text", "seed": seed, "max_bad_steps": NEVER}
    return changed(base, {**_both(settings.documents), **changes})


def cut_to(settings: Settings, length: int) -> Config:
    """Documents in samples of so many tokens; at "small" also of half as many, ... down to 32."""
    halvings = {"data.resolutions": (length // SHORTEST).bit_length()}
    return {"data.length": length, **(halvings if settings.scale == "small" else {})}


def relu_of_text(settings: Settings) -> Config | str:
    """Paper 2's relu attention, its gamma from 8 at "small"."""
    if settings.scale != "small":
        return "relu"
    return pointwise(alpha=0.5, gain="learned", gain_start=math.sqrt(2.0) / GAMMA)


def pointwise(activation: str = "relu", **fields: Any) -> Config:
    """Pointwise attention as a config holds it."""
    return {"activation": activation, **fields}


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """A copy of plain data with other values at dotted names; None takes a name away.

    Example:
        >>> changed({"model": {"name": "vit"}, "epochs": 3}, {"model.depth": 2, "epochs": None})
        {'model': {'name': 'vit', 'depth': 2}}
    """
    copy = _copy(config)
    for path, value in changes.items():
        *above, last = path.split(".")
        section = copy
        for name in above:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = _copy(cast(Config, value)) if isinstance(value, Mapping) else value
    return copy


def trial(
    factors: Mapping[str, Factor],
    config: Mapping[str, Any],
    afterwards: Iterable[Evaluation] = (),
) -> Trial:
    """A training whose name says where it stands."""
    work = Training(config=config, afterwards=tuple(afterwards))
    return Trial(name=name_of(factors), factors=factors, work=work)


def name_of(factors: Mapping[str, Factor]) -> str:
    """A folder's name from the factors: words as they are, numbers behind what they count.

    Example:
        >>> name_of({"attention": "relu / L", "alpha": 0.5, "seed": 1})
        'relu-L-alpha0.5-seed1'
    """
    parts = (
        re.sub(r"[^A-Za-z0-9.]+", "-", value).strip("-")
        if isinstance(value, str)
        else f"{name}{value:g}"
        for name, value in factors.items()
    )
    return "-".join(parts)


def _both(where: str) -> Config:
    return {"data.train": where, "data.validation": where}


def _copy(values: Mapping[str, Any]) -> Config:
    return {
        key: _copy(cast(Config, value)) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
