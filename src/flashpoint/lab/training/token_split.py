"""A model whose tokens lie on several processes: ``parallel.sequence`` of a config.

Every process of a sequence group gets the same samples. A ViT embeds all patches, its blocks see
this process' tokens, and what follows them sees all again. A ReLUFormer gets this process' tokens
to begin with, and gives their logits. In between only attention needs other tokens, and asks for
them by ``flashpoint.distributed``.

Gradients are averaged over all processes that have a part of the batch, as by DDP or FSDP. So that
this is right for weights that see some of the tokens and for those that see all, gradients inside
of a ViT's blocks are larger by the number of processes (``_Join``, ``_Cut``).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from flashpoint.distributed import sequence_parallel
from flashpoint.distributed.group import group_of
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.transport import Transport
from flashpoint.errors import UnsupportedError
from flashpoint.lab.training.ranks import Ranks
from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import SOFTMAX
from flashpoint.models.vit import ViT

TEXT_LAYOUT = "zigzag"
"""A process has one chunk from the front and one from the back: causal work and padding alike."""


def check_tokens(model: nn.Module, ranks: Ranks, strategy: str = "auto") -> None:
    """Refuse attention that knows no shards, and heads that a strategy cannot share out."""
    if ranks.sequence > 1 and any(layer.spec.activation == SOFTMAX for layer in _layers(model)):
        raise UnsupportedError(
            f"parallel.sequence={ranks.sequence} is for pointwise attention; the model has "
            "softmax. Set parallel.sequence: 1, or take another attention, as relu4/sum."
        )
    if ranks.sequence > 1 and strategy == "ulysses":
        _check_ulysses(model, ranks)


def _check_ulysses(model: nn.Module, ranks: Ranks) -> None:
    """Refuse heads that cannot be exchanged for tokens, before a first step does."""
    size = ranks.sequence * ranks.tensor
    for name, layer in model.named_modules():
        if isinstance(layer, Attention) and (layer.num_heads % size or layer.num_kv_heads % size):
            raise UnsupportedError(
                f"parallel.strategy='ulysses': sequence {ranks.sequence} x tensor {ranks.tensor} "
                f"= {size} processes must divide the {layer.num_heads} heads and "
                f"{layer.num_kv_heads} key heads of {name}. Set parallel.strategy: ring, or auto."
            )


def split_tokens(model: nn.Module, ranks: Ranks, strategy: str = "auto") -> None:
    """Let a model attend over the tokens of a sequence group, in place."""
    if ranks.sequence == 1 or ranks.mesh is None:
        return
    mesh = ranks.mesh["sequence"]
    is_vit = isinstance(model, ViT)
    # Processes of a group get batches of the same shapes, so that shards change only together.
    layout = "contiguous" if is_vit else TEXT_LAYOUT
    limit_s = None if ranks.timeout is None else ranks.timeout.total_seconds()
    attend = sequence_parallel(mesh, strategy, layout=layout, check="first", timeout_s=limit_s)
    for layer in _layers(model):
        layer.attend = attend
    if is_vit:
        tokens = _Tokens(Transport(group_of(mesh), "parallel.sequence", limit_s))
        model.blocks[0].register_forward_pre_hook(tokens.cut)
        model.blocks[-1].register_forward_hook(tokens.join)


def own_tokens(x: Tensor, ranks: Ranks) -> Tensor:
    """This process' part of [B, L] tokens of text."""
    if ranks.sequence == 1:
        return x
    shards = Shards.split(x.shape[1], ranks.sequence, TEXT_LAYOUT)
    return shards.take(x, ranks.replica_rank % ranks.sequence, 1)


def own_positions(length: int, ranks: Ranks) -> Tensor:
    """Where these tokens stand in the whole sequence, [1, L]."""
    return own_tokens(torch.arange(length, device=ranks.device)[None], ranks)


def _layers(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


class _Tokens:
    """Cuts the tokens of the batch at hand, and joins them."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.shards = Shards(())

    def cut(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Before the first block: x [B, L, E], and what comes beside it."""
        x, *rest = inputs
        self.shards = Shards.split(x.shape[1], self.transport.size, "contiguous")
        return (_Cut.apply(x, self), *rest)

    def join(self, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Any:
        """Behind the last block."""
        return _Join.apply(output, self)

    def take(self, whole: Tensor) -> Tensor:
        """This process' tokens."""
        return self.shards.take(whole, self.transport.rank, 1)

    def gather(self, part: Tensor, what: str) -> Tensor:
        """Those of all processes."""
        shapes = [[(len(part), length, part.shape[2])] for length in self.shards.lengths]
        parts = self.transport.all_gather([part], shapes, what)
        return self.shards.join([part for (part,) in parts], 1)


class _Cut(Function):
    """From all tokens to some; the gradient of all comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens: _Tokens) -> Tensor:
        ctx.tokens = tokens
        return tokens.take(x).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        whole = ctx.tokens.gather(gradients[0], "gradients of tokens")
        return whole / ctx.tokens.transport.size, None


class _Join(Function):
    """From some tokens to all. Every process has the gradient of all, and keeps its own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens: _Tokens) -> Tensor:
        ctx.tokens = tokens
        return tokens.gather(x, "tokens")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.tokens.take(gradients[0]) * ctx.tokens.transport.size, None
