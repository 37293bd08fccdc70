"""Models by name."""

import dataclasses
import re
from typing import Any

from flashpoint.errors import InputError, describe, hint
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.vit import ViT, ViTConfig

# width, depth, heads; an MLP has four times the width
SIZES = {"ti": (192, 12, 3), "s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16)}
PATCHES = (32, 16, 8)

_NAME = re.compile(r"vit_(ti|s|b|l)([1-9]\d*)")
_FIELDS = tuple(field.name for field in dataclasses.fields(ViTConfig))


def list_models() -> list[str]:
    """The usual names; any other patch size has one too, as vit_b14.

    Example:
        >>> list_models()[:3]
        ['vit_ti32', 'vit_ti16', 'vit_ti8']
    """
    return [f"vit_{size}{patch}" for size in SIZES for patch in PATCHES]


def is_model(name: str) -> bool:
    """Whether a name says which sizes it means; "vit" alone does not.

    Example:
        >>> is_model("vit_b14"), is_model("vit_x16")
        (True, False)
    """
    return _NAME.fullmatch(name) is not None


def create_model(name: str, **overrides: Any) -> ViT:
    """A new model with fresh weights.

    Args:
        name: "vit_{ti,s,b,l}{patch}" with any patch size, such as "vit_s16"; or "vit", for which
            width, depth and num_heads must be given.
        overrides: fields of ``ViTConfig``. ``attention`` may be the name of an activation, a
            mapping of the fields of ``AttentionSpec``, or one.

    Example:
        >>> model = create_model("vit_ti16", attention="relu", num_classes=10)
        >>> model.config.attention.activation
        'relu'
    """
    return ViT(model_config(name, **overrides))


def model_config(name: str, **overrides: Any) -> ViTConfig:
    """The config that ``create_model`` would build, without building it.

    Example:
        >>> model_config("vit_s16").mlp_dim
        1536
    """
    fields: dict[str, Any] = {} if name == "vit" else sizes_of(name)
    for field in overrides:
        if field not in _FIELDS:
            raise InputError(
                f"{name} has no setting {describe(field)}. {hint(field, _FIELDS)}"
                f"Known: {', '.join(_FIELDS)}."
            )
    patch = fields.get("patch_size")
    if patch is not None and overrides.get("patch_size", patch) != patch:
        raise InputError(
            f"{name} has patches of {patch}, patch_size={overrides['patch_size']!r} was given. "
            "Change the name."
        )
    fields |= overrides
    missing = [field for field in ("width", "depth", "num_heads") if field not in fields]
    if missing:
        raise InputError(f"model 'vit' has no sizes of its own. Give {', '.join(missing)}.")
    width = fields["width"]
    fields.setdefault("mlp_dim", 4 * width if isinstance(width, int) else width)
    if "attention" in fields:
        fields["attention"] = AttentionSpec.parse(fields["attention"])
    return ViTConfig(**fields)


def sizes_of(name: str) -> dict[str, Any]:
    """What a name says: width, depth, num_heads and patch_size.

    Example:
        >>> sizes_of("vit_s16")["width"]
        384
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise InputError(
            f"model {describe(name)} is unknown. {hint(name, list_models())}"
            "Known: vit_ti, vit_s, vit_b and vit_l with a patch size, as vit_s16; and vit."
        )
    width, depth, num_heads = SIZES[match[1]]
    patch = int(match[2])
    return {"width": width, "depth": depth, "num_heads": num_heads, "patch_size": patch}
