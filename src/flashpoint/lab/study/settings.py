"""What trials are made of: configs by scale, as plain data, and changes of them."""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from flashpoint.lab.data.places import FIT, HELD_OUT
from flashpoint.lab.data.text.recall import NUM_PIECES
from flashpoint.lab.runs.stored import read_yaml
from flashpoint.lab.study.plan import (
    Evaluation,
    Factor,
    Measurement,
    Scale,
    Settings,
    Training,
    Trial,
)
from flashpoint.lab.training.config_file import copied, find_published

Config = dict[str, Any]

NEVER = 1_000_000
"""Updates in a row that may fail: a run that diverges is a result, not a failure."""

SHORTEST = 32
"""Tokens of the shortest samples where documents are cut to several lengths."""

RELU4_SUM = "relu4/sum"
"""relu's fourth power over its row's own sum, which studies have beside relu and softmax."""

SHIFTED = "relu4+2/sum"
"""The same of scores raised by 2, so that keys below zero have a weight and a gradient; 2 was best
of 1, 2 and 4 in small trainings."""

NORMED = {RELU4_SUM: f"{RELU4_SUM}, qk-norm", "softmax": "softmax, qk-norm"}
"""Names of arms with a LayerNorm of q and k, by what they are without."""

NORM_CHOSEN = (
    "The study starts chose the norm of q and k for relu4/sum on these validation documents, so "
    "that it may look a little better here than on others."
)
"""A note for studies that judge those arms by the same documents."""

LOSS_OF_A_POINT = 0.03
"""Nats of validation loss on CIFAR-10 that go with about a point of top-1 in the stored runs."""

WHOLE_TRAINING: Config = {"epochs": 60, "compile": "graphs"}
"""ViTs at "small" long enough to show a gap to softmax, which opens after 30 epochs. So long a
training gains more by the compiler than compiling takes."""

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
SMALL_SENTENCES = (
    "At small: 3 + 3 layers of width 256 on segments of manuals and help pages, 20 epochs with "
    "2,000 updates of warm-up, where the paper has IWSLT14. The rest is fairseq's usual recipe, "
    "which we only suppose to be the paper's."
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

_VISION: Mapping[Scale, tuple[str, Config]] = {
    "smoke": (
        "digits",
        {
            **{"model.width": 32, "model.depth": 2, "model.num_heads": 2, "model.mlp_dim": 64},
            **{"epochs": None, "steps": 20},
            **{"log_every": 5, "evaluate_every": 20, "checkpoint_every": 20},
        },
    ),
    "small": (
        "cifar10",
        {
            **{"epochs": 10, "data.resident": None, "compile": "graphs_only"},
            **{"log_every": 100, "evaluate_every": NEVER, "checkpoint_every": NEVER},
        },
    ),
    "paper": ("vit_i1k", {}),
}
"""The published config of a scale, and where its studies depart from it."""

_TEXT: Mapping[Scale, tuple[str | None, Config]] = {
    "smoke": (
        None,
        {
            "model": {
                **{"name": "reluformer", "width": 32, "encoder_depth": 1, "decoder_depth": 1},
                **{"num_heads": 2, "mlp_dim": 64},
            },
            "data": {"length": 32, "join": False, "pieces": {"vocabulary_size": NUM_PIECES}},
            **{"steps": 12, "batch_size": 1024, "optimizer": {"lr": 2e-3}},
            "schedule": {"kind": "cosine", "warmup_share": 0.1, "warmup_steps": 0},
            "precision": "fp32",
            **{"log_every": 4, "evaluate_every": 12, "checkpoint_every": 12},
        },
    ),
    "small": (
        "en_de_docs",
        {
            **{"model.attention": None, "model.encoder_depth": 3, "model.decoder_depth": 3},
            **{"steps": 2000, "schedule.warmup_share": 0.1, "schedule.warmup_steps": 0},
            **{"log_every": 100, "evaluate_every": NEVER, "checkpoint_every": NEVER},
        },
    ),
    "paper": (
        None,
        {
            "model": {"name": "reluformer_base", "dropout": 0.1},
            "data": {"length": 512, "join": True, "pieces": {"vocabulary_size": 32_000}},
            **{"steps": 100_000, "batch_size": 32_768, "optimizer": {"lr": 7e-4}},
            "schedule": {"kind": "inverse_sqrt", "warmup_steps": 4000},
            **{"precision": "bf16", "compile": "default"},
            **{"log_every": 50, "evaluate_every": 2500, "checkpoint_every": 1000},
        },
    ),
}
"""The same for documents; None: no config is published, all of it stands here."""

_SENTENCES: Mapping[Scale, tuple[str | None, Config]] = {
    "smoke": (None, {**_TEXT["smoke"][1], "data.samples": "segments"}),
    "small": (
        "reluformer_iwslt",
        {
            **{"model.width": 256, "model.encoder_depth": 3, "model.decoder_depth": 3},
            **{"model.mlp_dim": 512, "epochs": 20, "schedule.warmup_steps": 2000},
            **{"log_every": 100, "evaluate_every": NEVER, "checkpoint_every": NEVER},
        },
    ),
    "paper": ("reluformer_iwslt", {}),
}
"""The same for sentences."""

_LANGUAGE: Mapping[Scale, tuple[str | None, Config]] = {
    "smoke": (
        None,
        {
            "model": {"name": "gpt2", "width": 32, "depth": 2, "num_heads": 2},
            "data": {"length": 64, "pieces": {"vocabulary_size": 330}},
            **{"steps": 20, "batch_size": 512, "optimizer": {"lr": 3e-3}, "precision": "fp32"},
            **{"log_every": 5, "evaluate_every": 20, "checkpoint_every": 20},
        },
    ),
    "small": (
        "linux_doc",
        {"log_every": 100, "evaluate_every": NEVER, "checkpoint_every": NEVER},
    ),
    "paper": (
        None,
        {
            "model": {"name": "gpt2", "width": 768, "depth": 12, "num_heads": 12},
            "data": {"length": 1024, "pieces": {"vocabulary_size": 32_000}},
            **{"steps": 20_000, "batch_size": 524_288, "accumulate": 4},
            **{"optimizer": {"lr": 6e-4}, "precision": "bf16", "compile": "default"},
            **{"log_every": 50, "evaluate_every": 2500, "checkpoint_every": 1000},
        },
    ),
}
"""The same for passages."""

DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "vision": ("model.qk_norm", "optimizer.betas"),
    "text": (
        *("data.source", "data.target", "data.pieces.kind", "label_smoothing"),
        *("optimizer.betas", "optimizer.weight_decay", "optimizer.clip"),
    ),
}
"""What files say although it holds by itself. Plans leave it out, and stored ones are compared."""


def vision(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """The config of a ViT on the images of a scale, with some dotted names changed."""
    base = _base("vision", seed, *_VISION[settings.scale], DEFAULTS["vision"])
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
    base = _base("text", seed, *_TEXT[settings.scale], DEFAULTS["text"])
    return changed(base, {**_both(settings.documents), **changes})


def sentences(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """The config of a ReLUFormer on single segments, by the recipe that paper 2 probably had."""
    base = _base("text", seed, *_SENTENCES[settings.scale])
    return changed(base, {**_both(settings.documents), **changes})


def documents_or_sentences(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """For what paper 2 asks of sentences: these at its scale, and documents at the others."""
    make = sentences if settings.scale == "paper" else text
    return make(settings, seed, changes)


def language(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """The config of a GPT-2 on the passages of a scale, with some dotted names changed."""
    base = _base("language", seed, *_LANGUAGE[settings.scale])
    return changed(base, {**_both(settings.passages), **changes})


def chosen_apart(settings: Settings) -> Config:
    """Documents to fit and documents that are held out of training, to choose settings on.

    Made-up ones, at "smoke", have no parts.
    """
    if settings.scale == "smoke":
        return _both(settings.documents)
    return {
        "data.train": split_of(settings, FIT),
        "data.validation": split_of(settings, HELD_OUT),
    }


def split_of(settings: Settings, split: str) -> str:
    """A split of the prepared documents, as a config names it."""
    return f"documents:{settings.documents.removeprefix('documents:')}:{split}"


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
    copy = copied(config)
    for path, value in changes.items():
        *above, last = path.split(".")
        section = copy
        for name in above:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = copied(cast(Config, value)) if isinstance(value, Mapping) else value
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


def _base(
    task: str,
    seed: int,
    name: str | None,
    departures: Mapping[str, Any],
    defaults: Iterable[str] = (),
) -> Config:
    """A published config without what holds by itself, and with a scale's departures from it."""
    published = changed(_read(name), dict.fromkeys(defaults)) if name else {}
    own = {"task": task, "seed": seed, "max_bad_steps": NEVER}
    return changed(published, {**departures, **own})


@cache
def _read(name: str) -> Config:
    return read_yaml(find_published(name))


def _both(where: str) -> Config:
    return {"data.train": where, "data.validation": where}
