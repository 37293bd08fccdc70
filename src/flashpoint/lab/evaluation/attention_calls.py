"""Attention layers at work: every call of a model's layers, their weights in blocks of queries.

A block of 128 query rows of one layer is all that ever exists of a matrix of weights, so memory
grows with L, not with its square.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.errors import InputError
from flashpoint.layers.attention import Attention
from flashpoint.shapes import Float

BLOCK_ROWS = 128
"""A multiple of every tile that statistics count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """One call of one layer: its queries and keys, and what may hide keys.

    Attributes:
        layer: number of the layer in the order of the model.
        options: mask, causal and key_lengths as the layer got them.
    """

    layer: int
    module: Attention
    q: Float[Tensor, "B H Lq D"]
    k: Float[Tensor, "B Hkv Lk D"]
    options: Mapping[str, Any]

    def blocks(self) -> Iterator[Float[Tensor, "B H rows Lk"]]:
        """The weights, ``BLOCK_ROWS`` queries at a time, in order."""
        for first in range(0, self.q.shape[2], BLOCK_ROWS):
            rows = slice(first, min(first + BLOCK_ROWS, self.q.shape[2]))
            yield self.module.weights(self.q, self.k, rows, **self.options)


def attention_layers(model: nn.Module) -> list[Attention]:
    """All attention layers of a model, in the order of their calls."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        raise InputError(f"{type(model).__name__} has no attention layers to look at.")
    return layers


@contextmanager
def watch(model: nn.Module, on_call: Callable[[AttentionCall], None]) -> Generator[None]:
    """Show ``on_call`` every call of an attention layer while the model runs inside."""
    with ExitStack() as stack:
        for number, layer in enumerate(attention_layers(model)):
            hook = layer.register_forward_pre_hook(_show(number, on_call), with_kwargs=True)
            stack.callback(hook.remove)
        yield


def _show(number: int, on_call: Callable[[AttentionCall], None]) -> Callable[..., None]:
    """A hook that projects the layer's input as the layer is about to do."""

    def hook(module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
        assert isinstance(module, Attention)
        options = dict(options)
        context = options.pop("context", None) if len(inputs) < 2 else inputs[1]
        with torch.no_grad():
            q, k, _ = module.project(inputs[0], context)
            on_call(AttentionCall(layer=number, module=module, q=q, k=k, options=options))

    return hook
