"""From a foreign ViT's weights under timm's names to a ViT of ours, or a refusal that says why."""

import math
import re
from typing import Any

from torch import Tensor

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.layers.positions import resize_positions
from flashpoint.models.vit import ViT, ViTConfig

Weights = dict[str, Tensor]

_SHAPED = ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "pos_embed")  # tell the sizes
_LEARNED_NUMBER = re.compile(r"blocks\.\d+\.attn\.(alpha|gain|bias)")  # ours alone
# What names mean that our ViT never has.
_FOREIGN_PARTS = {
    r"reg_token": "register tokens",
    r"dist_token|head_dist\..*|embeddings\.distillation_token": "a distillation token",
    r"norm_pre\..*": "a norm before the blocks",
    r".*\.[qk]_norm\..*": "norms of q and k with biases",
    r".*\.attn\.(gate|norm)\..*": "a gate or norm on the attention's output",
    r".*\.mlp\.norm\..*": "a norm inside the MLP",
    r".*\.mlp\.(fc1_[gx]|w12|w3)\..*": "a gated MLP (SwiGLU)",
    r".*(rel_pos|relative_position).*": "relative positions",
    r".*mask_token|decoder\..*": "a mask token or decoder",
}


def read_sizes(weights: Weights, whose: str) -> dict[str, Any]:
    """The fields of a config that shapes tell. A class token's own position joins the token."""
    for pattern, part in _FOREIGN_PARTS.items():
        foreign = [name for name in weights if re.fullmatch(pattern, name)]
        if foreign:
            raise UnsupportedError(f"{whose} has {part} ({listed(foreign)}); our ViT has not.")
    missing = [name for name in _SHAPED if name not in weights]
    if missing:
        raise UnsupportedError(
            f"{whose} has no {missing[0]!r}. Expected a plain ViT with learned positions."
        )
    width, channels, rows, columns = weights["patch_embed.proj.weight"].shape
    weights |= join_token_position(weights, whose)
    num_positions = weights["pos_embed"].shape[1]
    grid = math.isqrt(num_positions)
    if rows != columns or grid**2 != num_positions:
        raise UnsupportedError(
            f"{whose} has patches of {rows} x {columns} pixels and {num_positions} positions. "
            "Only square patches on a square grid can be loaded."
        )
    return {
        "image_size": grid * rows,
        "patch_size": rows,
        "channels": channels,
        "num_classes": weights["head.weight"].shape[0] if "head.weight" in weights else 0,
        "width": width,
        "depth": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "mlp_dim": weights["blocks.0.mlp.fc1.weight"].shape[0],
        "qkv_bias": "blocks.0.attn.qkv.bias" in weights,
        "layer_scale": 1.0 if "blocks.0.ls1.gamma" in weights else None,
        "qk_norm": "none",
    }


def join_token_position(weights: Weights, whose: str) -> Weights:
    """The same with a class token's own position, which timm puts first, added to the token."""
    positions, token = weights.get("pos_embed"), weights.get("cls_token")
    if positions is None:
        return weights
    if positions.dim() != 3 or positions.shape[0] != 1 or not positions.shape[1]:
        raise InputError(
            f"{whose}: pos_embed has shape {list(positions.shape)}, expected [1, N, E] with a "
            "position for each patch. Give a ViT's weights."
        )
    count = positions.shape[1]
    if token is None or math.isqrt(count) ** 2 == count:
        return weights
    first = positions[:, :1]
    if token.shape != first.shape:
        raise InputError(
            f"{whose}: cls_token has shape {list(token.shape)}, expected {list(first.shape)} to "
            "match pos_embed. Give a ViT's weights."
        )
    return weights | {"cls_token": token + first, "pos_embed": positions[:, 1:]}


def build(config: ViTConfig, weights: Weights, whose: str, *, antialias: bool = True) -> ViT:
    """A model of this config with these weights, their positions brought to its image size."""
    model = ViT(config)
    expected = model.state_dict()
    resized = resize_positions(weights["pos_embed"], config.grid, antialias=antialias)
    weights = weights | {"pos_embed": resized}
    _check_match(weights, expected, whose)
    model = model.to(resized)  # its dtype and device
    model.load_state_dict(weights, strict=False)
    return model


def _check_match(weights: Weights, expected: Weights, whose: str) -> None:
    """The names and shapes of our ViT; what is learned here only may be missing."""
    extra = [name for name in weights if name not in expected]
    if "cls_token" in extra:
        raise UnsupportedError(
            f"{whose} has a class token that its pooling does not read; our ViT has not."
        )
    if extra:
        raise UnsupportedError(f"{whose} has {listed(extra)}, which our ViT has not.")
    missing = [
        name for name in expected if name not in weights and not _LEARNED_NUMBER.fullmatch(name)
    ]
    if missing:
        raise UnsupportedError(f"{whose} lacks {listed(missing)}, which our ViT has.")
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            raise UnsupportedError(
                f"{whose}: {name} has shape {list(weight.shape)}, our ViT's has "
                f"{list(expected[name].shape)}."
            )


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
