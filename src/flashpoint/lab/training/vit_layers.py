"""The attention layers of a ViT, as adaptation compares, calibrates and matches them."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from flashpoint.convert.calibrate import part_of_call
from flashpoint.convert.number_search import Call, search_numbers
from flashpoint.convert.substitute import Substitute
from flashpoint.lab.training.matching import Part, listen
from flashpoint.layers.attention import Attention
from flashpoint.models.vit import Block, ViT

Images = Iterable[Tensor]


def attention_layers(model: ViT) -> list[Attention]:
    """The blocks' attention, in order."""
    return [cast("Block", block).attn for block in model.blocks]


class ViTLayers:
    """As ``matching.Layers`` wants it."""

    def of(self, model: Any) -> list[nn.Module]:
        """All blocks' attention."""
        return list(attention_layers(model))

    def call(self, model: Any, inputs: Tensor) -> None:
        """Let the model look at images."""
        model(inputs)

    def parts(self, layer: Any) -> list[Part]:
        """q and k, their norms, and what is learned for each head."""
        rows = (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        found = [Part(parameter, 0, rows) for parameter in layer.qkv.parameters()]
        for norm in (layer.q_norm, layer.k_norm):
            found += [Part(parameter) for parameter in norm.parameters()]
        numbers = (layer.alpha, layer.gain, layer.bias)
        return found + [Part(number) for number in numbers if number is not None]


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
        asked = listen(ViTLayers(), teacher, images)
        for heard, layer, ask in zip(calls, attention_layers(teacher), asked, strict=True):
            q, k, v = layer.project(ask.args[0])
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
