"""Where models of transformers compute attention.

Their attention modules ask ``config._attn_implementation`` for the function to call. A site gives
its module a config of its own, in which that is ours; the model's config, and with it all other
modules and the masks, stay as they were.
"""

import copy
import inspect
from types import CodeType
from typing import Any

from torch import nn

from flashpoint.convert.sites import CHILD, Found, Site
from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers.calls import OWN_CONFIG
from flashpoint.convert.transformers.registration import PREFIX, is_ours, register_substitutes

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
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


def find(model: nn.Module) -> Found:
    """The attention modules of a model of transformers, also of one inside another module.

    Example:
        >>> from transformers import ViTConfig, ViTModel  # doctest: +SKIP
        >>> [site.name for site in find(ViTModel(ViTConfig())).sites][:1]  # doctest: +SKIP
        ['encoder.layer.0.attention']
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
    alike = [name for name, module in model.named_modules() if _looks_like_attention(module)]
    for name in alike:
        others = [other for other in (*judged, *alike) if other != name]
        holds = any(other.startswith(f"{name}.") for other in others)  # it is a part that attends
        if name in judged or holds or any(name.startswith(f"{other}.") for other in judged):
            continue
        kind = type(model.get_submodule(name)).__name__
        left[name] = f"{kind} does not compute by transformers' AttentionInterface"
    return Found(sites=tuple(sites), left=left)


def _why_not(module: nn.Module) -> str | None:
    """Why a module that asks the interface cannot be replaced; None where it can."""
    kind = type(module).__name__
    config: Any = getattr(module, OWN_CONFIG, None) or getattr(module, "config", None)
    if config is None:
        return f"{kind} has no config to choose its attention by"
    implementation = getattr(config, "_attn_implementation", None)
    if implementation not in (None, "sdpa", "eager") and not is_ours(implementation):
        return (
            f"{kind} computes by {implementation!r}, whose masks pointwise attention cannot read. "
            "Call model.set_attn_implementation('sdpa') first"
        )
    words = _words_of(_forward(module))
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
    return named or "scaled_dot_product_attention" in _words_of(_forward(module))


def _uses_interface(module: nn.Module) -> bool:
    words = _words_of(_forward(module))
    return "ALL_ATTENTION_FUNCTIONS" in words and "_attn_implementation" in words


def _forward(module: nn.Module) -> CodeType | None:
    """The code of a module's forward below its decorators; of a base's, where it calls that."""
    for kind in type(module).__mro__:
        function = kind.__dict__.get("forward")
        if function is None:
            continue
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None or "super" not in code.co_names:
            return code
    return None


def _words_of(code: CodeType | None) -> set[str]:
    """Names and strings that code mentions: what it looks up, and the keywords that it passes."""
    if code is None:
        return set()
    words = set(code.co_names)
    for constant in code.co_consts:
        parts = constant if isinstance(constant, tuple) else (constant,)
        words |= {part for part in parts if isinstance(part, str)}
    return words
