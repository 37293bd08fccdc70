"""timm's vision transformers, whose parameter names ours share."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.convert.weights import Weights, build, read_sizes
from flashpoint.errors import InputError, UnsupportedError, describe
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.vit import ViT, ViTConfig

_POOLS = {"token": "token", "avg": "gap", "map": "map"}
_WHOSE = "the timm model"


def load_timm_vit(
    source: nn.Module | Mapping[str, Tensor],
    *,
    attention: AttentionSpec | str | Mapping[str, Any] = "softmax",
    image_size: int | None = None,
    num_heads: int | None = None,
) -> ViT:
    """A ViT of ours with the weights of timm's; with softmax it gives the same logits.

    Args:
        source: a ``timm.models.VisionTransformer``, or the state dict of one. Only the model
            knows its pooling, GELU and norm eps; a dict is taken to pool by its class token, else
            by ``attn_pool``, else by averaging, with exact GELU and an eps of 1e-6.
        attention: what the blocks compute, as for ``create_model``. The weights were trained with
            softmax; anything else wants fine-tuning.
        image_size: for images of another size; positions are interpolated as timm does it.
        num_heads: to be given with a state dict, which does not tell.

    Raises:
        UnsupportedError: the model has parts that ours has not; the message names them.
    """
    if isinstance(source, nn.Module):
        if num_heads is not None:
            raise InputError(f"num_heads={num_heads} is for state dicts; the model has its own.")
        weights: Weights = dict(source.state_dict())
        facts = _read_model(source)
    else:
        weights = dict(source)
        facts = _read_dict(weights, num_heads)
    sizes = read_sizes(weights, _WHOSE)
    if facts["pool"] == "token":  # one token's norm may stand on either side of the choice
        weights = {name.replace("fc_norm.", "norm."): w for name, w in weights.items()}
    facts["fc_norm"] = "fc_norm.weight" in weights
    fields: dict[str, Any] = sizes | facts | {"attention": AttentionSpec.parse(attention)}
    if image_size is not None:
        fields["image_size"] = image_size
    return build(ViTConfig(**fields), weights, _WHOSE)


def _read_model(model: Any) -> dict[str, Any]:
    """What weights do not tell."""
    kind = type(model).__name__
    if not all(hasattr(model, part) for part in ("blocks", "global_pool", "patch_embed")):
        raise UnsupportedError(f"{kind} is not a vision transformer of timm's.")
    if model.global_pool not in _POOLS:
        raise UnsupportedError(
            f"{_WHOSE} pools by {model.global_pool!r}; ours by {', '.join(_POOLS)}."
        )
    first = model.blocks[0]
    kinds = {type(block).__name__ for block in model.blocks}
    if kinds != {"Block"}:  # others may have the same parameters and another order
        raise UnsupportedError(f"{_WHOSE} has blocks of {', '.join(kinds)}; ours are Block.")
    return {
        "num_heads": first.attn.num_heads,
        "pool": _POOLS[model.global_pool],
        "gelu": _find_gelu(first.mlp),
        "norm_eps": getattr(first.norm1, "eps", 1e-6),
    }


def _read_dict(weights: Weights, num_heads: int | None) -> dict[str, Any]:
    if num_heads is None:
        raise InputError("a state dict does not tell the number of heads. Pass num_heads.")
    if "cls_token" in weights and "fc_norm.weight" in weights:
        raise UnsupportedError(
            f"{_WHOSE} has a class token and fc_norm: it may pool either way. Pass the model."
        )
    token = "cls_token" in weights
    pool = "token" if token else "map" if "attn_pool.latent" in weights else "gap"
    return {"num_heads": num_heads, "pool": pool}


@torch.no_grad()
def _find_gelu(mlp: Any) -> str:
    """Which GELU an MLP has, found by trying it."""
    act = getattr(mlp, "act", None)
    x = torch.linspace(-4.0, 4.0, 81)
    y = act(x) if isinstance(act, nn.Module) else x
    for name, approximate in (("exact", "none"), ("tanh", "tanh")):
        if torch.allclose(y, F.gelu(x, approximate=approximate), atol=1e-6):
            return name
    raise UnsupportedError(f"{_WHOSE} has the activation {describe(act)}; ours has GELU.")
