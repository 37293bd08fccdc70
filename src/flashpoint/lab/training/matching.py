"""A softmax ViT as one with other attention, layer by layer: converted, calibrated, matched.

The student's layers are compared with the teacher's on the teacher's own inputs, so no layer
inherits the errors of those below it, and all can be adapted at once.

Shapes: B images, L tokens, E width.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from flashpoint.convert.calibrate import part_of_call
from flashpoint.convert.number_search import Call, search_numbers
from flashpoint.convert.substitute import Substitute
from flashpoint.layers.attention import Attention
from flashpoint.models.vit import Block, ViT

Images = Iterable[Tensor]


def attention_layers(model: ViT) -> list[Attention]:
    """The blocks' attention, in order."""
    return [cast("Block", block).attn for block in model.blocks]


@torch.no_grad()
def calibrate_vit(teacher: ViT, student: ViT, batches: Images) -> None:
    """Give every head of the student the numbers with which it follows the teacher's softmax best.

    Args:
        teacher: computes softmax.
        student: has the teacher's weights; gain and bias are learned per head. A scale goes into
            the weights of q, unless a norm follows them: then heads keep theirs.
        batches: images, on the models' device.
    """
    calls: list[list[Call]] = [[] for _ in teacher.blocks]
    for images in batches:
        for heard, layer, (x, _) in zip(
            calls, attention_layers(teacher), _listen(teacher, images), strict=True
        ):
            q, k, v = layer.project(x)
            heard.append(part_of_call(layer.mix(q, k, v), q, k, v))
    for number, (layer, heard) in enumerate(zip(attention_layers(student), calls, strict=True)):
        has_norm = not isinstance(layer.q_norm, nn.Identity)
        found = Substitute(layer.spec, layer.num_heads, learns_scale=not has_norm)
        found.to(layer.proj.weight.device)
        search_numbers(found, heard, f"block {number}")
        _take(layer, found)


def _take(layer: Attention, found: Substitute) -> None:
    """The numbers of a substitute as a layer's own."""
    for name in ("gain", "bias"):
        number = getattr(found, name)
        if number is not None:
            getattr(layer, name).copy_(number)
    if found.scale is not None:
        width = layer.num_heads * layer.head_dim
        factors = found.scale.repeat_interleave(layer.head_dim)  # [E]
        layer.qkv.weight[:width].mul_(factors[:, None])
        if layer.qkv.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            layer.qkv.bias[:width].mul_(factors)


@torch.no_grad()
def layer_errors(teacher: ViT, student: ViT, images: Tensor) -> list[float]:
    """How far each attention layer's output is from the teacher's, on the teacher's inputs.

    Squared distance over the squared size of the teacher's: 0 is equal, 1 is as far as zeros.
    """
    errors: list[float] = []
    heard = _listen(teacher, images)
    for layer, (x, wanted) in zip(attention_layers(student), heard, strict=True):
        distance = (layer(x).double() - wanted.double()).square().sum()
        errors.append(float(distance / wanted.double().square().sum()))
    return errors


def match_layers(
    teacher: ViT, student: ViT, batches: Iterator[Tensor], *, steps: int, lr: float
) -> Generator[tuple[int, float]]:
    """Train q, k and the learned numbers of every layer towards the teacher's output.

    Values, projections and everything outside attention stay.

    Args:
        teacher: computes softmax.
        student: as ``calibrate_vit`` left it.
        batches: images, at least as many as steps.
        steps: updates by AdamW without decay.
        lr: falls to 0 along a cosine.

    Yields:
        The number of each step and the mean error of the layers before it.
    """
    layers = attention_layers(student)
    with _only_q_and_k(layers) as parameters:
        optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            errors: list[Tensor] = []
            for layer, (x, wanted) in zip(layers, _listen(teacher, next(batches)), strict=True):
                distance = (layer(x).float() - wanted.float()).square().mean()
                errors.append(distance / wanted.float().square().mean())
            optimizer.zero_grad(set_to_none=True)
            error = torch.stack(errors).mean()
            error.backward()
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            if norm.isfinite():
                optimizer.step()
            yield step + 1, float(error.detach())


def _listen(teacher: ViT, images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What every attention layer of the teacher reads and gives, [B, L, E] each."""
    heard: list[tuple[Tensor, Tensor]] = []

    def write(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        heard.append((args[0].detach(), output.detach()))

    hooks = [layer.register_forward_hook(write) for layer in attention_layers(teacher)]
    try:
        with torch.no_grad():
            teacher(images)
    finally:
        for hook in hooks:
            hook.remove()
    return heard


@contextmanager
def _only_q_and_k(layers: list[Attention]) -> Generator[list[nn.Parameter]]:
    """What of the layers makes weights of attention, as parameters whose v gets no gradient."""
    parameters: list[nn.Parameter] = []
    hooks: list[Any] = []
    for layer in layers:
        rows = (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        for parameter in layer.qkv.parameters():
            hooks.append(parameter.register_hook(_first(rows)))
            parameters.append(parameter)
        for norm in (layer.q_norm, layer.k_norm):
            parameters.extend(norm.parameters())
        numbers = (layer.alpha, layer.gain, layer.bias)
        parameters.extend(number for number in numbers if number is not None)
    try:
        yield parameters
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            layer.zero_grad(set_to_none=True)


def _first(rows: int) -> Any:
    """A hook that keeps the gradient of the first rows alone."""

    def keep(gradient: Tensor) -> Tensor:
        kept = torch.zeros_like(gradient)
        kept[:rows] = gradient[:rows]
        return kept

    return keep
