"""Models by name: of images (vit), of text (reluformer)."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from flashpoint.bounds import plain_number
from flashpoint.errors import InputError, describe, hint
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.reluformer import ReLUFormer, ReLUFormerConfig, text_attention
from flashpoint.models.vit import ViT, ViTConfig

# width, depth, heads; an MLP has four times the width
SIZES = {"ti": (192, 12, 3), "s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16)}
PATCHES = (32, 16, 8)

# width, depth of encoder and of decoder, heads, slots of a memory, pieces
TEXT_SIZES = {
    "tiny": (64, 2, 4, 128, 1_000),
    "iwslt": (512, 6, 4, 1024, 10_000),
    "base": (512, 6, 8, 2048, 32_000),
}

_NAME = re.compile(r"vit_(ti|s|b|l)([1-9]\d{0,4})")
_TEXT_NAME = re.compile(rf"reluformer_({'|'.join(TEXT_SIZES)})")
_KNOWN = (
    "Known: vit_ti, vit_s, vit_b and vit_l with a patch size, as vit_s16; "
    f"{', '.join(f'reluformer_{size}' for size in TEXT_SIZES)}; and vit and reluformer, whose "
    "sizes are yours."
)


def list_models() -> list[str]:
    """The usual names; any other patch size has one too, as vit_b14.

    Example:
        >>> list_models()[:3], list_models()[-1]
        (['vit_ti32', 'vit_ti16', 'vit_ti8'], 'reluformer_base')
    """
    images = [f"vit_{size}{patch}" for size in SIZES for patch in PATCHES]
    return images + [f"reluformer_{size}" for size in TEXT_SIZES]


def is_model(name: str) -> bool:
    """Whether a name says which sizes it means; "vit" and "reluformer" alone do not.

    Example:
        >>> is_model("vit_b14"), is_model("vit_x16")
        (True, False)
    """
    return _NAME.fullmatch(name) is not None or _TEXT_NAME.fullmatch(name) is not None


def is_text_model(name: str) -> bool:
    """Whether a name, sizes or not, is that of a model of text.

    Example:
        >>> is_text_model("reluformer"), is_text_model("vit_s16")
        (True, False)
    """
    return name == "reluformer" or _TEXT_NAME.fullmatch(name) is not None


def create_model(name: str, **overrides: Any) -> ViT | ReLUFormer:
    """A new model with fresh weights.

    Args:
        name: of images "vit_{ti,s,b,l}{patch}" with any patch size, such as "vit_s16"; of text
            "reluformer_{tiny,iwslt,base}". Or "vit", for which width, depth and num_heads must
            be given, and "reluformer", which needs both depths.
        overrides: fields of ``ViTConfig`` or ``ReLUFormerConfig``. ``attention`` may be the name
            of an activation, a mapping of the fields of ``AttentionSpec``, or one; the word
            "relu" alone is, for text, ReLUFormer's own with its factor.

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
    if "attention" in fields:
        fields["attention"] = text_attention(fields["attention"])
    return ReLUFormerConfig(**fields)


def sizes_of(name: str) -> dict[str, Any]:
    """What an image model's name says: width, depth, num_heads and patch_size.

    Example:
        >>> sizes_of("vit_s16")["width"]
        384
    """
    match = _match(_NAME, name)
    width, depth, num_heads = SIZES[match[1]]
    patch = int(match[2])
    return {"width": width, "depth": depth, "num_heads": num_heads, "patch_size": patch}


def text_sizes_of(name: str) -> dict[str, Any]:
    """What a text model's name says.

    Example:
        >>> text_sizes_of("reluformer_iwslt")["mlp_dim"]
        1024
    """
    width, depth, num_heads, slots, pieces = TEXT_SIZES[_match(_TEXT_NAME, name)[1]]
    return {
        "vocabulary_size": pieces,
        "width": width,
        "encoder_depth": depth,
        "decoder_depth": depth,
        "num_heads": num_heads,
        "mlp_dim": slots,
    }


def _match(pattern: re.Pattern[str], name: str) -> re.Match[str]:
    match = pattern.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        kind = "a model of text" if pattern is _TEXT_NAME else "a model of images"
        known = isinstance(name, str) and (is_model(name) or name in ("vit", "reluformer"))
        raise InputError(
            f"model {describe(name)} is {f'not {kind}' if known else 'unknown'}. "
            f"{'' if known else hint(name, list_models())}{_KNOWN}"
        )
    return match


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
