"""Weights of another model as a start for a ViT of ours; names are ours, timm's or Hugging Face's.

What fits is taken. A head of another size or of other classes stays new, positions of another grid
are interpolated, and whatever else is missing or left over is named; sizes that differ otherwise
are refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flashpoint.convert.transformers_vit import under_our_names
from flashpoint.convert.weights import Weights, join_token_position, listed
from flashpoint.errors import InputError
from flashpoint.layers.positions import resize_positions

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What of given weights a model can start from.

    Attributes:
        weights: by the model's names, in its shapes.
        new: names of the model's that were not given, or as a head that does not serve.
        left_out: given names that the model has not.
        grids: patches along a side, given and wanted, where positions were interpolated.
    """

    weights: Weights
    new: tuple[str, ...]
    left_out: tuple[str, ...]
    grids: tuple[int, int] | None


def fit(
    given: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    whose: str,
    *,
    takes_head: bool = True,
) -> Fitted:
    """Bring given weights to the names and shapes of a model's state dict.

    Args:
        given: of a ViT; a class token's own position joins the token.
        expected: the model's, of which shapes are read only.
        whose: what messages call the given ones.
        takes_head: whether the given head may serve, if its size does.

    Raises:
        InputError: a weight other than the head's has another shape, one that is wanted is not
            floating or not finite, one of q, k and v is missing, or no block has any.
    """
    weights = join_token_position(under_our_names(given, whose), whose)
    left_out = tuple(name for name in weights if name not in expected)
    weights = {name: weight for name, weight in weights.items() if name in expected}
    if not any(name.startswith("blocks.") for name in weights):
        raise InputError(
            f"{whose} fits nothing: none of its {len(given)} weights ({listed(list(given))}) is "
            "one of the model's blocks. Give a ViT's, with our names, timm's or Hugging Face's."
        )
    _check_values(weights, whose)
    grids = _resize_positions(weights, expected, whose)
    sizes_differ = (
        name in weights and weights[name].shape != expected[name].shape for name in HEAD
    )
    if not takes_head or any(sizes_differ):
        weights = {name: weight for name, weight in weights.items() if name not in HEAD}
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            raise InputError(
                f"{whose} does not fit: {name} has shape {list(weight.shape)}, the model's has "
                f"{list(expected[name].shape)}. Train a model of the same sizes."
            )
    new = tuple(name for name in expected if name not in weights)
    return Fitted(weights=weights, new=new, left_out=left_out, grids=grids)


def _check_values(weights: Weights, whose: str) -> None:
    """Refuse what no model can start from: integers, complex numbers, NaN and infinity."""
    for name, weight in weights.items():
        if not weight.is_floating_point():
            raise InputError(
                f"{whose}: {name} is {str(weight.dtype).removeprefix('torch.')}, but weights are "
                "floating. Give those of a model that is not quantized."
            )
        num_finite = int(weight.float().isfinite().sum())  # as the model will hold them
        if num_finite < weight.numel():
            raise InputError(
                f"{whose}: {weight.numel() - num_finite} of the {weight.numel()} values of {name} "
                "are not finite in fp32. Give weights from before they were lost."
            )


def _resize_positions(
    weights: Weights, expected: Mapping[str, Tensor], whose: str
) -> tuple[int, int] | None:
    """Interpolate positions of another grid, in place; gives both grids."""
    if "pos_embed" not in weights:
        return None
    count = weights["pos_embed"].shape[1]
    grid, before = math.isqrt(expected["pos_embed"].shape[1]), math.isqrt(count)
    if before**2 != count:
        raise InputError(
            f"{whose} has {count} positions of patches, which are no square grid. Give the "
            "weights of a ViT for square images."
        )
    if before == grid:
        return None
    weights["pos_embed"] = resize_positions(weights["pos_embed"], grid)
    return before, grid
