"""Where a vision transformer looks: attention of chosen layers as maps over the image.

The map of a layer says how much each patch counts for what is read off the model:

- mean and attention pooling read all tokens, so a patch counts by the attention it receives,
  averaged over the queries;
- a class token reads only itself, so a patch counts by the weight in the class token's row.

Heads are averaged. Sums over queries are made block by block; no matrix of weights exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.evaluation.attention_calls import AttentionCall, watch
from flashpoint.lab.evaluation.frozen import frozen
from flashpoint.models.vit import ViT
from flashpoint.shapes import Float

Reading: TypeAlias = Literal["received", "class token"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMaps:
    """Maps of some layers for some images.

    Attributes:
        images: what the model saw, [B, C, S, S], values in [-1, 1].
        layers: their numbers, from 0.
        maps: by layer, [B, rows of patches, columns of patches], not normalized.
        reading: "received": mean over queries; "class token": its row.
    """

    images: Float[Tensor, "B C S S"]
    layers: tuple[int, ...]
    maps: tuple[Float[Tensor, "B side side"], ...]
    reading: Reading


def map_attention(
    model: ViT, images: Float[Tensor, "B C S S"], layers: Sequence[int] | None = None
) -> AttentionMaps:
    """Run images through a model and gather the maps of ``layers`` (None: of all blocks)."""
    depth = len(model.blocks)
    chosen = tuple(range(depth)) if layers is None else _resolve(layers, depth)
    reading: Reading = "class token" if model.config.pool == "token" else "received"
    side = model.config.grid
    found: dict[int, Tensor] = {}

    def gather(call: AttentionCall) -> None:
        if call.layer in chosen:
            found[call.layer] = _patch_weights(call, reading, side)

    with frozen(model), watch(model, gather):
        model(images)
    maps = tuple(found[layer].cpu() for layer in chosen)
    return AttentionMaps(images=images.cpu(), layers=chosen, maps=maps, reading=reading)


def _patch_weights(call: AttentionCall, reading: Reading, side: int) -> Tensor:
    """[B, side, side], mean over heads of the row or column that counts."""
    num_queries = call.q.shape[2]
    if reading == "class token":
        row = call.module.weights(call.q, call.k, slice(0, 1), **call.options)
        return row.mean((1, 2))[:, 1:].unflatten(1, (side, side))
    received = torch.stack([block.sum(2).mean(1) for block in call.blocks()]).sum(0)
    return (received / num_queries).unflatten(1, (side, side))  # [B, Lk] as patches


def _resolve(layers: Sequence[int], depth: int) -> tuple[int, ...]:
    """Numbers from 0; negative ones count from the end, as Python's do."""
    for layer in layers:
        if not -depth <= layer < depth:
            raise InputError(
                f"layer {layer} does not exist: the model has {depth}, numbered 0 to {depth - 1}."
            )
    return tuple(dict.fromkeys(layer % depth for layer in layers))


def spread_layers(model: ViT, count: int) -> tuple[int, ...]:
    """``count`` layers from the first to the last, evenly; all if there are no more."""
    depth = len(model.blocks)
    count = min(count, depth)
    if count < 2:
        return (depth - 1,)
    return tuple(round(i * (depth - 1) / (count - 1)) for i in range(count))
