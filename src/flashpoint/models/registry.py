"""Models by name: of images (vit), of text (reluformer)."""

import dataclasses
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from flashpoint.bounds import plain_number
from flashpoint.errors import InputError, describe, hint
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.reluformer import ReLUFormer, ReLUFormerConfig, text_attention
from flashpoint.models.timm_methods import POOLS
from flashpoint.models.vit import ViT, ViTConfig


def _text_size(
    width: int, depth: int, num_heads: int, *, slots: int, pieces: int
) -> dict[str, int]:
    """A ReLUFormer whose encoder and decoder are of one depth."""
    return {
        "vocabulary_size": pieces,
        "width": width,
        "encoder_depth": depth,
        "decoder_depth": depth,
        "num_heads": num_heads,
        "mlp_dim": slots,
    }


SIZES: dict[str, dict[str, int]] = {
    "vit_ti": {"width": 192, "depth": 12, "num_heads": 3},
    "vit_s": {"width": 384, "depth": 12, "num_heads": 6},
    "vit_b": {"width": 768, "depth": 12, "num_heads": 12},
    "vit_l": {"width": 1024, "depth": 24, "num_heads": 16},
    "reluformer_tiny": _text_size(64, 2, 4, slots=128, pieces=1_000),
    "reluformer_iwslt": _text_size(512, 6, 4, slots=1024, pieces=10_000),
    "reluformer_base": _text_size(512, 6, 8, slots=2048, pieces=32_000),
}
"""All sizes that have a name, as fields of their configs; a row here is all that a new one needs.

A ViT's name has a patch size behind it, as vit_s16. An MLP has four times the width unless told.
"""
PATCHES = (32, 16, 8)
"""Those that are listed; names with others are understood."""

TIMM_WORDS = {
    "img_size": "image_size",
    "in_chans": "channels",
    "global_pool": "pool",
    "drop_path_rate": "drop_path",
}
"""timm's names of settings, which ``create_model`` takes for ours."""

_PATCHED = re.compile(r"(vit_.*?)([1-9]\d{0,4})")


def list_models(filter: str = "*") -> list[str]:
    """The usual names; any other patch size has one too, as vit_b14.

    Args:
        filter: a pattern with * and ? that names must match.

    Example:
        >>> list_models()[:3], list_models()[-1]
        (['vit_ti32', 'vit_ti16', 'vit_ti8'], 'reluformer_base')
        >>> list_models("vit_*16")
        ['vit_ti16', 'vit_s16', 'vit_b16', 'vit_l16']
    """
    images = [f"{name}{patch}" for name in _sizes(of_text=False) for patch in PATCHES]
    return [name for name in images + _sizes(of_text=True) if fnmatchcase(name, filter)]


def known_models() -> str:
    """All sizes, as a sentence for messages.

    Example:
        >>> known_models()
        'Known: vit_ti, vit_s, vit_b and vit_l with a patch size, as vit_s16; reluformer_tiny, \
reluformer_iwslt, reluformer_base.'
    """
    *images, last = _sizes(of_text=False)
    texts = ", ".join(_sizes(of_text=True))
    return f"Known: {', '.join(images)} and {last} with a patch size, as vit_s16; {texts}."


def _sizes(*, of_text: bool) -> list[str]:
    return [name for name in SIZES if is_text_model(name) == of_text]


def is_model(name: str) -> bool:
    """Whether a name says which sizes it means; "vit" and "reluformer" alone do not.

    Example:
        >>> is_model("vit_b14"), is_model("vit_x16")
        (True, False)
    """
    return _fields(name) is not None


def is_text_model(name: str) -> bool:
    """Whether a name, sizes or not, is that of a model of text.

    Example:
        >>> is_text_model("reluformer"), is_text_model("vit_s16")
        (True, False)
    """
    return name == "reluformer" or (name.startswith("reluformer_") and name in SIZES)


def create_model(name: str, **overrides: Any) -> ViT | ReLUFormer:
    """A new model with fresh weights.

    Args:
        name: a row of ``SIZES``; of images with any patch size behind it, such as "vit_s16", of
            text as it is, such as "reluformer_base". Or "vit", for which width, depth and
            num_heads must be given, and "reluformer", which needs both depths.
        overrides: fields of ``ViTConfig`` or ``ReLUFormerConfig``. ``attention`` may be a word,
            as "relu", "softmax" or "relu4/sum", a mapping of the fields of ``AttentionSpec``, or
            one; the word "relu" alone is, for text, ReLUFormer's own with its factor. Image
            models also take timm's img_size, in_chans, global_pool ("avg" is our "gap", whose
            norm comes first unless ``fc_norm=True``) and drop_path_rate.

    Example:
        >>> model = create_model("vit_ti16", attention="relu", num_classes=10)
        >>> model.config.attention.activation
        'relu'
    """
    config = model_config(name, **overrides)
    return ViT(config) if isinstance(config, ViTConfig) else ReLUFormer(config)


def model_config(name: str, **overrides: Any) -> ViTConfig | ReLUFormerConfig:
    """The config that ``create_model`` would build, without building it.

    Example:
        >>> model_config("vit_s16").mlp_dim
        1536
    """
    if isinstance(name, str) and is_text_model(name):
        return text_model_config(name, **overrides)
    return image_model_config(name, **overrides)


def image_model_config(name: str, **overrides: Any) -> ViTConfig:
    """The same for names of image models only."""
    fields: dict[str, Any] = {} if name == "vit" else sizes_of(name)
    overrides = _in_our_words(overrides)
    _check_fields(name, overrides, ViTConfig)
    patch = fields.get("patch_size")
    if patch is not None and overrides.get("patch_size", patch) != patch:
        raise InputError(
            f"{name} has patches of {patch}, patch_size={describe(overrides['patch_size'])} was "
            "given. Change the name."
        )
    fields |= overrides
    _complete(name, fields, ("width", "depth", "num_heads"))
    if "attention" in fields:
        fields["attention"] = AttentionSpec.parse(fields["attention"])
    return ViTConfig(**fields)


def text_model_config(name: str, **overrides: Any) -> ReLUFormerConfig:
    """The same for names of text models only.

    Example:
        >>> text_model_config("reluformer_base", attention="softmax").mlp_dim
        2048
    """
    fields: dict[str, Any] = {} if name == "reluformer" else text_sizes_of(name)
    _check_fields(name, overrides, ReLUFormerConfig)
    fields |= overrides
    _complete(name, fields, ("width", "encoder_depth", "decoder_depth", "num_heads"))
    for field in ("attention", "cross_attention"):
        if fields.get(field) is not None:
            fields[field] = text_attention(fields[field])
    return ReLUFormerConfig(**fields)


def sizes_of(name: str) -> dict[str, Any]:
    """What an image model's name says: width, depth, num_heads and patch_size.

    Example:
        >>> sizes_of("vit_s16")["width"]
        384
    """
    return _named(name, is_text=False)


def text_sizes_of(name: str) -> dict[str, Any]:
    """What a text model's name says.

    Example:
        >>> text_sizes_of("reluformer_iwslt")["mlp_dim"]
        1024
    """
    return _named(name, is_text=True)


def _fields(name: str) -> dict[str, int] | None:
    """What a name says; None where it is no model's."""
    if is_text_model(name):
        return SIZES.get(name)
    match = _PATCHED.fullmatch(name)
    if match is None or match[1] not in SIZES:
        return None
    return {**SIZES[match[1]], "patch_size": int(match[2])}


def _named(name: str, *, is_text: bool) -> dict[str, Any]:
    """The same, of a model of one kind; InputError for any other name."""
    fields = _fields(name) if isinstance(name, str) else None
    if fields is not None and is_text_model(name) == is_text:
        return dict(fields)
    if fields is not None or name in ("vit", "reluformer"):
        wrong = f"not a model of {'text' if is_text else 'images'}. "
    else:
        wrong = f"unknown. {hint(name, list_models())}"
    raise InputError(
        f"model {describe(name)} is {wrong}{known_models()} The sizes of vit and reluformer are "
        "yours to give."
    )


def _in_our_words(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under our names only."""
    settings = dict(overrides)
    for word, field in TIMM_WORDS.items():
        if word not in settings:
            continue
        if field in settings:
            raise InputError(f"{word} and {field} are one setting. Give one of them.")
        value = settings.pop(word)
        if word == "global_pool" and isinstance(value, str):
            value = POOLS.get(value, value)
        if word == "img_size" and isinstance(value, (tuple, list)):
            if len(value) != 2 or value[0] != value[1]:
                raise InputError(f"img_size={describe(value)}: images must be square.")
            value = value[0]
        settings[field] = value
    return settings


def _check_fields(name: str, overrides: Mapping[str, Any], config: type) -> None:
    known = tuple(field.name for field in dataclasses.fields(config))
    for field in overrides:
        if field not in known:
            raise InputError(
                f"{name} has no setting {describe(field)}. {hint(field, known)}"
                f"Known: {', '.join(known)}."
            )


def _complete(name: str, fields: dict[str, Any], needed: tuple[str, ...]) -> None:
    """Refuse sizes that nobody gave; an MLP has four times the width unless told."""
    missing = [field for field in needed if field not in fields]
    if missing:
        raise InputError(f"model {name!r} has no sizes of its own. Give {', '.join(missing)}.")
    width = plain_number(fields["width"])
    fields.setdefault("mlp_dim", fields["width"] if width is None else 4 * width)
