"""Variance of attention's output at initialization, measured with the operator and in a layer.

``moments.py`` says what both should be, and how the numbers are named.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.lab.study.moments import variance_name
from flashpoint.lab.training.ranks import choose_device
from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import SOFTMAX, AttentionSpec
from flashpoint.ops.api import attention

HEAD_DIM = 64
QUERIES = 16
MAX_SCORES = 2**24
LAYER_QUERIES = 64


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Variances by activation, alpha and number of keys.

    Args:
        options: activations (and "softmax"), alphas, keys; heads, which are samples; width,
            head count and draws of the layer, whose activations are layer_activations; seed.
    """
    device = choose_device("auto")
    generator = torch.Generator().manual_seed(options["seed"])
    found: dict[str, float] = {}
    for keys in options["keys"]:
        heads = max(1, min(options["heads"], MAX_SCORES // (QUERIES * keys)))
        shapes = ((1, heads, n, HEAD_DIM) for n in (QUERIES, keys, keys))
        q, k, v = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
        for activation in options["activations"]:
            for alpha in _alphas(activation, options["alphas"]):
                o = _attend(q, k, v, activation, alpha)
                found[variance_name(activation, alpha, keys)] = o.double().square().mean().item()
    for keys in options["keys"]:
        found |= _measure_layers(options, keys, generator, device)
    return found


def _alphas(activation: str, alphas: Sequence[float]) -> Sequence[float]:
    return (0.0,) if activation == SOFTMAX else alphas


def _attend(q: Tensor, k: Tensor, v: Tensor, activation: str, alpha: float) -> Tensor:
    if activation == SOFTMAX:
        return F.scaled_dot_product_attention(q, k, v)
    return attention(q, k, v, activation=activation, alpha=alpha)


@torch.no_grad()
def _measure_layers(
    options: Mapping[str, Any], keys: int, generator: torch.Generator, device: torch.device
) -> dict[str, float]:
    """Heads' outputs in fresh layers that normal tokens go through; the mean over layers."""
    width, draws = options["width"], options["draws"]
    found: dict[str, float] = {}
    for activation in options["layer_activations"]:
        for alpha in _alphas(activation, options["alphas"]):
            total = 0.0
            for draw in range(draws):
                torch.manual_seed(1000 * options["seed"] + draw)
                fields = {} if activation == SOFTMAX else {"alpha": alpha}
                spec = AttentionSpec.parse({"activation": activation, **fields})
                layer = Attention(width, width // HEAD_DIM, spec, context_dim=width).to(device)
                x, context = (
                    torch.randn((1, n, width), generator=generator).to(device)
                    for n in (LAYER_QUERIES, keys)
                )
                o = layer.mix(*layer.project(x, context))
                total += o.double().square().mean().item()
            found[variance_name(activation, alpha, keys, is_layer=True)] = total / draws
    return found
