"""Flashpoint: attention without softmax, exact and fast.

Every weight passes through a pointwise function (ReLU by default) instead of softmax, and the
sum is divided by the number of keys a query sees. Five minutes to a first result:

>>> import torch
>>> import flashpoint
>>> q, k, v = (torch.randn(1, 8, 128, 64, requires_grad=True) for _ in range(3))
>>> o = flashpoint.attention(q, k, v, causal=True)  # where you called SDPA
>>> o.shape
torch.Size([1, 8, 128, 64])
>>> o.sum().backward()  # gradients as for any PyTorch function

Change one word to change the mathematics, nothing else to keep it fast:

>>> o = flashpoint.attention(q, k, v, activation="sigmoid", alpha=0.0, bias=-4.0)

``flashpoint doctor`` says what runs on this machine, ``flashpoint bench`` how fast.
"""

from typing import TYPE_CHECKING

from flashpoint.errors import FlashpointError, InputError, UnsupportedError
from flashpoint.version import __version__

__all__ = [
    "Activation",
    "AttentionSpec",
    "FlashpointError",
    "HeadNorm",
    "InputError",
    "UnsupportedError",
    "__version__",
    "attention",
    "attention_qkvpacked",
    "attention_varlen",
    "create_model",
    "list_models",
    "register_activation",
    "replace_attention",
    "restore_attention",
    "scaled_dot_product_attention",
]

if TYPE_CHECKING:
    from flashpoint.convert.replace import replace_attention, restore_attention
    from flashpoint.layers.spec import AttentionSpec
    from flashpoint.models.registry import create_model, list_models
    from flashpoint.ops.activation import Activation, register_activation
    from flashpoint.ops.api import attention, attention_qkvpacked, attention_varlen
    from flashpoint.ops.qk_norm import HeadNorm
    from flashpoint.ops.sdpa import scaled_dot_product_attention
else:  # torch loads when one of these is first used, so the command line answers at once
    _HOMES = {
        "Activation": "flashpoint.ops.activation",
        "AttentionSpec": "flashpoint.layers.spec",
        "HeadNorm": "flashpoint.ops.qk_norm",
        "attention": "flashpoint.ops.api",
        "attention_qkvpacked": "flashpoint.ops.api",
        "attention_varlen": "flashpoint.ops.api",
        "create_model": "flashpoint.models.registry",
        "list_models": "flashpoint.models.registry",
        "register_activation": "flashpoint.ops.activation",
        "replace_attention": "flashpoint.convert.replace",
        "restore_attention": "flashpoint.convert.replace",
        "scaled_dot_product_attention": "flashpoint.ops.sdpa",
    }

    def __getattr__(name: str) -> object:
        """Import a public name from its home on first use."""
        from importlib import import_module

        if name in ("layers", "models", "distributed"):  # as in flashpoint.layers.Attention
            return import_module(f"flashpoint.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """List the public names, loaded or not."""
        return sorted({*globals(), *__all__})
