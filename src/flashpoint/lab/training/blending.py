"""Attention on the way from softmax to another: in training a mixture of both outputs.

It stands where a layer takes its attention function (``Attention.attend``), or behind a substitute
in somebody else's model, and only while a model trains and a share is set. In eval mode, and in
every checkpoint, a model is what its config says.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.convert.substitute import Substitute
from flashpoint.errors import UnsupportedError
from flashpoint.layers.attention import Attention
from flashpoint.layers.softmax import attend_softmax
from flashpoint.layers.visibility import Visibility
from flashpoint.ops.api import attention

_LEAST_GAIN = 1e-6
_BLEND = "blend"


class Blend(nn.Module):
    """``attention``, and in training a share of it with softmax as the rest.

    The layer multiplies what comes back by its gain. Softmax has none, so it is divided by it.

    Args:
        gain: gives the layer's.
    """

    share: Tensor  # no state: every batch brings its own

    def __init__(self, gain: Callable[[], Any]) -> None:
        super().__init__()
        self.gain = gain
        self.register_buffer("share", torch.ones(()), persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Takes the arguments of ``flashpoint.attention``."""
        o = attention(q, k, v, **options)
        if not self.training:
            return o
        causal, lengths = options.get("causal", False), options.get("key_lengths")
        visibility = Visibility.of(q, k, options.get("mask"), causal, lengths)
        softmax = attend_softmax(q, k, v, visibility) * (1 - self.share)
        gain = self.gain()
        if isinstance(gain, Tensor):
            gain = gain.where(gain.abs() > _LEAST_GAIN, _LEAST_GAIN)
        return (o * self.share + softmax / gain).to(o.dtype)


class SubstituteBlend:
    """The same behind a substitute, as a hook of its forward: its output already has its gain."""

    def __init__(self, substitute: Substitute, device: torch.device) -> None:
        self.share = torch.ones((), device=device)
        self._handle = substitute.register_forward_hook(self._mix, with_kwargs=True)

    def _mix(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], o: Tensor
    ) -> Tensor:
        if not module.training:
            return o
        softmax = F.scaled_dot_product_attention(*args, **kwargs)
        return (o * self.share + softmax * (1 - self.share)).to(o.dtype)

    def remove(self) -> None:
        """Take it out."""
        self._handle.remove()


def set_share(model: nn.Module, share: Tensor | None) -> None:
    """Let a model's layers compute so much of their own attention, and softmax for the rest.

    Args:
        model: of ``Attention`` layers, or with substitutes in it.
        share: 0 to 1, a tensor without dims; None takes the blends out.
    """
    for layer in model.modules():
        if isinstance(layer, Substitute):
            _share_substitute(layer, share)
        if not isinstance(layer, Attention):
            continue
        is_blended = isinstance(layer.attend, Blend)
        if share is None and is_blended:
            del layer.attend  # a module; what follows is none
            layer.attend = attention
        elif share is not None:
            if not is_blended:
                _blend(layer)
            layer.attend.share.copy_(share)  # pyright: ignore[reportFunctionMemberAccess]


def _share_substitute(substitute: Substitute, share: Tensor | None) -> None:
    blend: SubstituteBlend | None = getattr(substitute, _BLEND, None)
    if share is None:
        if blend is not None:
            blend.remove()
            delattr(substitute, _BLEND)
        return
    if blend is None:
        blend = SubstituteBlend(substitute, share.device)
        setattr(substitute, _BLEND, blend)
    blend.share.copy_(share)


def _blend(layer: Attention) -> None:
    if layer.alpha is not None:
        raise UnsupportedError(
            "annealing needs an alpha that is a number: a learned one multiplies softmax too. "
            "Set adapt.anneal_share=0, or model.attention.alpha to a number."
        )
    blend = Blend(lambda: layer.factor_terms()[0]).train(layer.training)
    del layer.attend
    layer.attend = blend.to(layer.proj.weight.device)
