"""Where models of transformers compute attention.

Their attention modules ask ``config._attn_implementation`` for the function to call. A site gives
its module a config of its own, in which that is ours; the model's config, and with it all other
modules and the masks, stay as they were.
"""

import copy
import functools
import inspect
from typing import Any

from torch import nn

from flashpoint.convert.sites import CHILD, Found, Site, original_class, path_of
from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers.calls import OWN_CONFIG, dropout_advice
from flashpoint.convert.transformers.masks import can_read_masks
from flashpoint.convert.transformers.registration import PREFIX, register_substitutes

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_DROPOUTS = ("attention_dropout", "attn_dropout", "dropout_prob", "dropout")
_OTHERS = ("torch", "timm", "flashpoint")  # judge their own modules
_UNSERVED = {
    "s_aux": "it has sinks, which take weight from softmax",
    "indices": "an indexer picks its keys",
    "block_indices": "an indexer picks its keys",
}


class InterfaceSite(Site):
    """A module that calls what transformers' ``AttentionInterface`` has under a name."""

    module: Any

    @property
    def num_heads(self) -> int:
        """Query heads, as the module or its config says."""
        heads = _num_heads(self.module)
        assert heads is not None  # ``find`` leaves such modules
        return heads

    def install(self, substitute: Substitute) -> None:
        """Let the module compute its attention by it, from the next call on."""
        register_substitutes()
        module = self.module
        if not hasattr(module, OWN_CONFIG):
            setattr(module, OWN_CONFIG, module.config)
            module.config = copy.copy(module.config)
            module.config._attn_implementation = {"": PREFIX}  # not that of its sub-configs
        setattr(module, CHILD, substitute)

    def restore(self) -> None:
        """Let the module share its model's config again."""
        module = self.module
        if hasattr(module, OWN_CONFIG):
            module.config = getattr(module, OWN_CONFIG)
            delattr(module, OWN_CONFIG)
            delattr(module, CHILD)

    @property
    def dropout(self) -> float:
        """The share of weights that the module drops while it trains."""
        words = _words_of(type(self.module))
        for name in _DROPOUTS:
            value = getattr(self.module, name, None) if name in words else None
            share = value.p if isinstance(value, nn.Dropout) else value
            if isinstance(share, (int, float)):
                return float(share)
        return 0.0

    @property
    def dropout_advice(self) -> str:
        """How to set that share to 0, as a part of a sentence."""
        return dropout_advice(self.module, self.dropout)


def find(model: nn.Module) -> Found:
    """The attention modules of a model of transformers, also of one inside another module.

    Example:
        >>> from transformers import ViTConfig, ViTModel  # doctest: +SKIP
        >>> [site.name for site in find(ViTModel(ViTConfig())).sites][:1]  # doctest: +SKIP
        ['layers.0.attention']
    """
    sites: list[Site] = []
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if not _uses_interface(module):
            continue
        reason = _why_not(module)
        if reason is None:
            sites.append(InterfaceSite(name, module))
        else:
            left[name] = reason
    judged = [*(site.name for site in sites), *left]
    alike = [name for name, x in model.named_modules() if _looks_like_attention(x)]
    own = _own_modules(model)
    for name in alike:
        holds = any(other.startswith(f"{name}.") for other in (*judged, *alike))
        within = any(name.startswith(f"{other}.") for other in judged)
        if name in own and name not in judged and not holds and not within:
            kind = path_of(original_class(own[name]))
            left[name] = f"{kind} does not compute by transformers' AttentionInterface"
    return Found(sites=tuple(sites), left=left)


def _own_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that transformers or somebody's model for it defines, by name."""
    holders: list[str] = []
    own: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        kind = original_class(module)
        if any(base.__name__ == "PreTrainedModel" for base in kind.__mro__):
            holders.append(name)
        is_inside = any(not holder or f"{name}.".startswith(f"{holder}.") for holder in holders)
        if is_inside and kind.__module__.partition(".")[0] not in _OTHERS:
            own[name] = module
    return own


def _why_not(module: nn.Module) -> str | None:
    """Why a module that asks the interface cannot be replaced; None where it can."""
    kind = type(module).__name__
    config: Any = getattr(module, OWN_CONFIG, None) or getattr(module, "config", None)
    if config is None:
        return f"{kind} has no config to choose its attention by"
    implementation = getattr(config, "_attn_implementation", None)
    if not can_read_masks(implementation):
        return (
            f"{kind} computes by {implementation!r}, whose masks pointwise attention cannot read. "
            "Call model.set_attn_implementation('sdpa') first"
        )
    words = _words_of(type(module))
    for word, reason in _UNSERVED.items():
        if word in words:
            return f"{kind} passes {word}: {reason}"
    if "softcap" in words and _soft_cap(module) is not None:
        return f"{kind} passes softcap={_soft_cap(module):g}: scores are capped before softmax"
    if _num_heads(module) is None:
        return f"{kind} does not say how many heads it has"
    return None


def _soft_cap(module: nn.Module) -> float | None:
    config = getattr(module, "config", None)
    for owner in (module, config):
        for name in ("attn_logit_softcapping", "softcap", "logit_softcap"):
            value = getattr(owner, name, None)
            if isinstance(value, (int, float)):
                return value
    return None


def _num_heads(module: nn.Module) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    return None


def _looks_like_attention(module: nn.Module) -> bool:
    """By its class's name, or since it calls PyTorch's attention itself."""
    named = "attention" in type(module).__name__.lower()
    return named or "scaled_dot_product_attention" in _words_of(type(module))


def _uses_interface(module: nn.Module) -> bool:
    words = _words_of(type(module))
    return "ALL_ATTENTION_FUNCTIONS" in words and "_attn_implementation" in words


@functools.cache
def _words_of(kind: type) -> frozenset[str]:
    """Names and strings in a class's forward: what it looks up, and the keywords that it passes.

    Decorators are looked behind, and a base's forward counts where it is called.
    """
    words: set[str] = set()
    for base in kind.__mro__:
        forward = base.__dict__.get("forward")
        code = None if forward is None else getattr(inspect.unwrap(forward), "__code__", None)
        if code is None:
            continue
        words |= set(code.co_names)
        for constant in code.co_consts:
            parts = constant if isinstance(constant, tuple) else (constant,)
            words |= {part for part in parts if isinstance(part, str)}
        if "super" not in code.co_names:
            break
    return frozenset(words)
