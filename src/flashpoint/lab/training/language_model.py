"""Hugging Face's GPT-2 as a model of configs: its sizes as data, with any attention inside."""

import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from flashpoint.bounds import Bounds, Depth, Width, check_bounds
from flashpoint.convert.replace import find_attention, replace_attention
from flashpoint.convert.sites import Site
from flashpoint.convert.substitute import Substitute
from flashpoint.errors import InputError, check_choice, require
from flashpoint.lab.data.text.pieces import BOS, EOS
from flashpoint.lab.training.config import ModelConfig
from flashpoint.layers.spec import SOFTMAX, AttentionSpec
from flashpoint.shapes import Float, Int

NAME = "gpt2"
ReplacedLayers = Literal["all", "every_second"]
WHICH: dict[str, slice] = {"all": slice(None), "every_second": slice(1, None, 2)}
"""The second, the fourth, ... of the blocks: the first keeps softmax."""
_OWN_CONFIG = "config_with_masks"


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelConfig:
    """A GPT-2: a causal model with learned positions, whose head shares the embedding's weights.

    It has no dropout: passages are seen a few times only, and pointwise attention has none.

    Attributes:
        width: of the residual stream; a multiple of num_heads.
        depth: blocks.
        num_heads: of attention.
        length: positions, the most tokens that it can read.
        vocabulary_size: pieces.
        attention: what the replaced layers compute; softmax leaves the model as it is.
        layers: which layers are replaced: "all", or "every_second", from the second on.
        scale: "learned_per_head" gives every head of these a factor on its queries, which
            calibration sets; "fixed" has none.
    """

    width: Width
    depth: Depth
    num_heads: Width
    length: Annotated[int, Bounds(1, 65_536)]
    vocabulary_size: Annotated[int, Bounds(1, 2_000_000)]
    attention: AttentionSpec = field(default_factory=lambda: AttentionSpec(activation=SOFTMAX))
    layers: ReplacedLayers = "all"
    scale: Literal["fixed", "learned_per_head"] = "fixed"

    def __post_init__(self) -> None:
        check_bounds(self)
        object.__setattr__(self, "attention", AttentionSpec.parse(self.attention))
        check_choice("layers", self.layers, tuple(WHICH))
        check_choice("scale", self.scale, ("fixed", "learned_per_head"))
        if self.width % self.num_heads:
            raise InputError(
                f"width={self.width} must be a multiple of num_heads={self.num_heads}."
            )
        if self.depth < 2 and self.layers == "every_second":
            raise InputError(f"layers='every_second' needs 2 blocks, and depth={self.depth}.")
        if self.attention.activation == SOFTMAX and self.scale != "fixed":
            raise InputError("scale='learned_per_head' is for replaced layers, not for softmax.")

    @property
    def flops_per_token(self) -> float:
        """Operations of forward's matrix products for a token of a whole row.

        Pairs that causality hides count too, as PyTorch counts them.
        """
        blocks = 12 * self.depth * self.width**2
        head = self.width * self.vocabulary_size
        return 2.0 * (blocks + head) + 4.0 * self.depth * self.length * self.width


def language_config(model: ModelConfig, **defaults: Any) -> LanguageModelConfig:
    """The whole config of a model, its settings checked by name and type.

    Args:
        model: "gpt2" and settings.
        defaults: settings that the model's own may replace.
    """
    if model.name != NAME:
        raise InputError(
            f"model.name={model.name!r} is no language model, as task 'language' trains. "
            f"Known: {NAME}."
        )
    settings = {**defaults, **model.typed(LanguageModelConfig)}
    missing = [name for name in ("width", "depth", "num_heads") if name not in settings]
    if missing:
        raise InputError(f"model {NAME!r} has no sizes of its own. Give {', '.join(missing)}.")
    try:
        return LanguageModelConfig(**settings)
    except InputError as error:
        raise InputError(f"model: {error}") from error


def build_language_model(config: LanguageModelConfig) -> Any:
    """A ``GPT2LMHeadModel`` with fresh weights, its attention replaced as the config says."""
    transformers = require("transformers", f"model {NAME!r}", extra="hf")
    sizes = transformers.GPT2Config(
        vocab_size=config.vocabulary_size,
        n_positions=config.length,
        n_embd=config.width,
        n_layer=config.depth,
        n_head=config.num_heads,
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        **{"bos_token_id": BOS, "eos_token_id": EOS},
    )
    model = transformers.GPT2LMHeadModel(sizes)
    ask = partial(_ask_for_no_mask, _cache_class())  # a cached function breaks compiled graphs
    model.transformer.register_forward_pre_hook(ask, with_kwargs=True)
    model.transformer.register_forward_hook(_ask_again, always_call=True)
    if config.attention.activation != SOFTMAX:
        replace_attention(model, config.attention, layers=WHICH[config.layers])
        if config.scale != "fixed":
            _learn_scales(model, config.attention)
    return model


def replaced_sites(model: Any) -> list[Site]:
    """The attention modules of a model that compute another attention, in order."""
    return [site for site in find_attention(model).sites if site.substitute is not None]


def _learn_scales(model: Any, spec: AttentionSpec) -> None:
    """Give every replaced head a factor on its queries."""
    for site in replaced_sites(model):
        like = next(site.module.parameters())
        substitute = Substitute(spec, site.num_heads, learns_scale=True)
        site.install(substitute.train(site.module.training).to(like.device))


def logits_of(model: Any, ids: Int[Tensor, "B L"], **options: Any) -> Float[Tensor, "B L V"]:
    """What a causal model says of whole rows, without padding and without a cache.

    Args:
        model: of transformers.
        ids: the rows.
        options: of the model's call, as ``logits_to_keep``.
    """
    return model(input_ids=ids, **without_cache(), **options).logits


def without_cache() -> dict[str, Any]:
    """Arguments of a call that keeps no keys, of whole rows: causality is all their mask.

    By itself transformers looks for rows that are packed of several, by values on the device, so
    that a call waits for the GPU; and while one is captured it makes a mask of L x L, which leaves
    no kernel for causal rows. A cache that keeps nothing tells the model's hooks to ask for none.
    """
    return {"past_key_values": _cache_class()(), "use_cache": False}


def _ask_for_no_mask(keeps_nothing: Any, body: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Give a model, for one call, a config whose implementation transformers has no masks for."""
    if isinstance(kwargs.get("past_key_values"), keeps_nothing):
        setattr(body, _OWN_CONFIG, body.config)
        body.config = copy.copy(body.config)
        body.config._attn_implementation = {"": "causal_alone"}  # its layers ask their own


def _ask_again(body: Any, args: Any, output: Any) -> None:
    """Give the model its own config back."""
    if hasattr(body, _OWN_CONFIG):
        body.config = getattr(body, _OWN_CONFIG)
        delattr(body, _OWN_CONFIG)


@cache
def _cache_class() -> Any:
    from transformers import DynamicCache

    class KeepsNothing(DynamicCache):
        """Gives keys and values back as they come."""

        def update(
            self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            return key_states, value_states

    return KeepsNothing


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which a run of this precision computes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
