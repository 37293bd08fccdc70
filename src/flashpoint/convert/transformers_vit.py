"""Hugging Face's ViT, whose q, k and v are projections of their own."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.convert.weights import Weights, build, read_sizes
from flashpoint.errors import InputError, UnsupportedError, describe
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.vit import ViT, ViTConfig

_WHOSE = "the Hugging Face model"
_GELUS = {
    "gelu": "exact",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
_BLOCK = r"(?:layers|encoder\.layer)\.(\d+)\."  # of version 5, and before
_RENAMES = {
    r"vit\.(.*)": r"\1",
    r"embeddings\.cls_token": "cls_token",
    r"embeddings\.position_embeddings": "pos_embed",
    r"embeddings\.patch_embeddings\.projection\.(.*)": r"patch_embed.proj.\1",
    _BLOCK + r"layernorm_before\.(.*)": r"blocks.\1.norm1.\2",
    _BLOCK + r"layernorm_after\.(.*)": r"blocks.\1.norm2.\2",
    _BLOCK + r"attention\.(?:attention\.query|q_proj)\.(.*)": r"blocks.\1.attn.q.\2",
    _BLOCK + r"attention\.(?:attention\.key|k_proj)\.(.*)": r"blocks.\1.attn.k.\2",
    _BLOCK + r"attention\.(?:attention\.value|v_proj)\.(.*)": r"blocks.\1.attn.v.\2",
    _BLOCK + r"attention\.(?:output\.dense|o_proj)\.(.*)": r"blocks.\1.attn.proj.\2",
    _BLOCK + r"(?:intermediate\.dense|mlp\.fc1)\.(.*)": r"blocks.\1.mlp.fc1.\2",
    _BLOCK + r"(?:output\.dense|mlp\.fc2)\.(.*)": r"blocks.\1.mlp.fc2.\2",
    r"layernorm\.(.*)": r"norm.\1",
    r"pooler\.dense\.(.*)": r"pre_logits.\1",
    r"classifier\.(.*)": r"head.\1",
}


def load_transformers_vit(
    model: nn.Module,
    *,
    attention: AttentionSpec | str | Mapping[str, Any] = "softmax",
    image_size: int | None = None,
) -> ViT:
    """A ViT of ours with the weights of Hugging Face's; with softmax it gives the same logits.

    Args:
        model: a ``ViTForImageClassification``; or a ``ViTModel``, which gives a model without a
            head: its features are the pooler's output, or the class token where there is none.
        attention: what the blocks compute, as for ``create_model``. The weights were trained with
            softmax; anything else wants fine-tuning.
        image_size: for images of another size; positions are interpolated as Hugging Face does it
            (``interpolate_pos_encoding=True``), without the antialias that timm has.

    Raises:
        UnsupportedError: the model has parts that ours has not; the message names them.
    """
    facts = _read_config(model)
    weights = under_our_names(model.state_dict(), _WHOSE)
    sizes = read_sizes(weights, _WHOSE)
    facts["pre_logits"] = "pre_logits.weight" in weights
    fields: dict[str, Any] = sizes | facts | {"attention": AttentionSpec.parse(attention)}
    if image_size is not None:
        fields["image_size"] = image_size
    return build(ViTConfig(**fields), weights, _WHOSE, antialias=False)


def _read_config(model: Any) -> dict[str, Any]:
    """What weights do not tell."""
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if config is None or kind != "vit":
        raise UnsupportedError(
            f"{type(model).__name__} is of the type {describe(kind)}; a Hugging Face model of the "
            "type 'vit' is expected."
        )
    if config.hidden_act not in _GELUS:
        raise UnsupportedError(
            f"{_WHOSE} has the activation {config.hidden_act!r}; ours has GELU."
        )
    if getattr(config, "pooler_act", "tanh") != "tanh":
        raise UnsupportedError(
            f"{_WHOSE} has a pooler with {config.pooler_act!r}; ours has tanh there."
        )
    return {
        "num_heads": config.num_attention_heads,
        "pool": "token",
        "gelu": _GELUS[config.hidden_act],
        "norm_eps": config.layer_norm_eps,
    }


def under_our_names(weights: Mapping[str, Tensor], whose: str) -> Weights:
    """Hugging Face's weights as timm and we name and join them; others as they are."""
    return _join_qkv({_rename(name): weight for name, weight in weights.items()}, whose)


def _rename(name: str) -> str:
    """Hugging Face's name as timm has it, or the name itself."""
    for pattern, replacement in _RENAMES.items():
        name = re.sub(rf"^{pattern}$", replacement, name)
    return name


def _join_qkv(weights: Weights, whose: str) -> Weights:
    """Three projections as one."""
    joined: Weights = {}
    for name, weight in weights.items():
        found = re.fullmatch(r"(blocks\.\d+\.attn)\.[qkv]\.(\w+)", name)
        if found is None:
            joined[name] = weight
            continue
        block, kind = found.groups()
        whole = f"{block}.qkv.{kind}"
        if whole not in joined:
            joined[whole] = _joined(weights, f"{block}.{{}}.{kind}", whose)
    return joined


def _joined(weights: Weights, name: str, whose: str) -> Tensor:
    """q, k and v of one name, in this order."""
    parts = {part: weights[name.format(part)] for part in "qkv" if name.format(part) in weights}
    shapes = [list(weight.shape) for weight in parts.values()]
    if shapes.count(shapes[0]) < 3 or not shapes[0]:
        given = ", ".join(f"{part} {list(weight.shape)}" for part, weight in parts.items())
        raise InputError(
            f"{whose}: of q, k and v, which are one projection here, {name.format('*')} has only "
            f"{given}. Give all three, in one shape."
        )
    return torch.cat(list(parts.values()))
