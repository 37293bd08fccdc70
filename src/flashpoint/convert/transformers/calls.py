"""What transformers calls where a model computes attention.

A function of its ``AttentionInterface`` gets a module, q, k and v as [B, H, L, D], a mask, and
whatever else the model passes by name. What is not understood is refused: a soft cap or a sink
that is left out gives another model.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.convert.sites import CHILD, original_class, path_of
from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers.masks import can_read_masks, merge
from flashpoint.errors import UnsupportedError
from flashpoint.layers.spec import SOFTMAX
from flashpoint.layers.visibility import is_sharded
from flashpoint.ops.sdpa import current_attend

OWN_CONFIG = "config_before_substitute"
"""Where a module keeps the config that it shares with its model, while it has one of its own."""

_KNOWN = frozenset(
    {
        "sliding_window",  # is in the mask
        "position_ids",  # of packed sequences: are in the mask
        "output_attentions",  # None comes back, as from SDPA
        "output_hidden_states",
        "output_router_logits",
        "num_items_in_batch",
        "use_cache",
        "cache_position",
        "encoder_hidden_states",  # BERT's decoder tells its self-attention too
        "return_dict",
        "deterministic",  # is PyTorch's to say
    }
)
_REASONS = {
    "softcap": "caps scores by tanh before softmax",
    "s_aux": "has sinks, which take weight from softmax",
    "head_mask": "multiplies heads by a mask",
    "cache": "reads a paged cache",
    "indices": "picks its keys by an indexer",
    "block_indices": "picks its keys by an indexer",
    "cu_seq_lens_q": "packs sequences for flash kernels",
    "cu_seq_lens_k": "packs sequences for flash kernels",
}
_HIDES_FROM: Mapping[str, float] = {
    "transformers.models.swin.modeling_swin.SwinAttention": -50.0,
}
"""Modules that hide keys by less than others do, as Swin by -100 on top of its bias of positions:
numbers of their masks from here down hide."""
_DROPOUTS = (
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "attn_dropout",
    "attention_dropout_prob",
    "attention_dropout_rate",
    "dropout_rate",
)
"""Names of a config for the share of weights that is dropped, the more exact ones first."""


def attend(
    substitute: Substitute,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one module by a substitute, with the meanings of transformers' own "sdpa".

    Args:
        substitute: computes it.
        module: asks for it; its ``is_causal`` holds where the argument is None.
        query, key, value: [B, H, Lq, D], [B, Hkv, Lk, D], [B, Hkv, Lk, Dv].
        attention_mask: see ``masks``.
        dropout: of weights; 0, unless the substitute is softmax.
        scaling: factor on the scores; None means D ** -0.5.
        is_causal: only looked at where no mask is given. One query then sees all keys; several
            see keys from the first on, as in a static cache that was empty. Over shards one query
            is causal too, and a cache is refused.
        position_bias: added to the scores.
        options: anything else; refused unless known to change nothing.

    Returns:
        [B, Lq, H, Dv], and None in place of the weights.
    """
    _check_options(module, options)
    hides_from = _HIDES_FROM.get(path_of(original_class(module)))
    if attention_mask is not None and hides_from is not None:
        attention_mask = attention_mask.masked_fill(attention_mask <= hides_from, -math.inf)
    if dropout and substitute.spec.activation != SOFTMAX:
        _refuse_dropout(module, dropout)
    num_queries = query.shape[2]
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    sharded = is_sharded(current_attend())
    if attention_mask is not None or (num_queries <= 1 and not sharded):
        is_causal = False
    if sharded and is_causal and key.shape[2] != num_queries:
        _refuse_cache(module, num_queries, key.shape[2])
    if is_causal and key.shape[2] > num_queries:  # nobody sees what a static cache has behind
        key, value = key[:, :, :num_queries], value[:, :, :num_queries]
        position_bias = None if position_bias is None else position_bias[..., :num_queries]
    sizes = (num_queries, key.shape[2])
    mask, is_causal = merge(attention_mask, position_bias, is_causal, sizes)
    given: dict[str, Any] = {
        "attn_mask": mask,
        "dropout_p": dropout,
        "is_causal": is_causal,
        "scale": scaling,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    o = substitute(query, key, value, **given)
    return o.transpose(1, 2).contiguous(), None


def attend_by_module(
    module: nn.Module, *tensors: Any, is_causal: bool | None = None, **options: Any
) -> tuple[Tensor, None]:
    """``attend`` by the substitute that the module itself holds."""
    substitute = getattr(module, CHILD, None)
    if not isinstance(substitute, Substitute):
        raise UnsupportedError(
            f"{type(module).__name__} has no attention of its own to compute by. Set an "
            "implementation by model.set_attn_implementation, or call replace_attention."
        )
    config = getattr(module, OWN_CONFIG, None)
    implementation = getattr(config, "_attn_implementation", None)
    if not can_read_masks(implementation):
        raise UnsupportedError(
            f"{type(module).__name__} was replaced, and its model makes masks for "
            f"{implementation!r}, which cannot be read here. Call "
            "model.set_attn_implementation('sdpa')."
        )
    if implementation == "eager":
        is_causal = False  # masks for eager say everything: it never looks at this flag
    return attend(substitute, module, *tensors, is_causal=is_causal, **options)


def _check_options(module: nn.Module, options: dict[str, Any]) -> None:
    """Refuse what would change the result and is not computed here."""
    for name, value in options.items():
        if value is None or name in _KNOWN:
            continue
        does = _REASONS.get(name, "passes something that is not known here")
        raise UnsupportedError(
            f"{type(module).__name__} {does}: {name}=... Keep its own attention: leave it out of "
            "layers=, or use attn_implementation='eager'."
        )
    if options.get("deterministic") and not torch.are_deterministic_algorithms_enabled():
        raise UnsupportedError(
            f"{type(module).__name__} passes deterministic=True, but PyTorch is not in that mode, "
            "which the kernels go by. Call torch.use_deterministic_algorithms(True)."
        )
    if options.get("output_attentions"):
        _say_no_weights()


def _say_no_weights() -> None:
    """Tell, once and as "sdpa" does, that nobody returns weights."""
    from transformers.utils import logging

    logging.get_logger(__name__).warning_once(
        "pointwise attention returns None in place of weights for output_attentions=True."
    )


def _refuse_cache(module: nn.Module, num_queries: int, num_keys: int) -> None:
    raise UnsupportedError(
        f"{type(module).__name__} has {num_queries} queries and {num_keys} keys on this rank, as "
        "with a cache, and caches are not served over shards of a sequence. Pass use_cache=False."
    )


def _refuse_dropout(module: nn.Module, dropout: float) -> None:
    raise UnsupportedError(
        f"{type(module).__name__} drops attention weights with p={dropout:g} while training, and "
        f"pointwise attention keeps none to drop. To train, {dropout_advice(module, dropout)}."
    )


def dropout_advice(module: nn.Module, dropout: float) -> str:
    """How to have a model that drops no weights, as a part of a sentence."""
    config = getattr(module, "config", None)
    names = [name for name in _DROPOUTS if getattr(config, name, None) == dropout]
    field = names[0] if names else "attention_dropout"
    return f"make or load the model with {field}=0.0, as from_pretrained(..., {field}=0.0) does"
