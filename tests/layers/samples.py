"""Small layers and inputs, every option of forward."""

import torch

from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec

B, L, E, H = 3, 7, 24, 4
LEARNED = {"alpha": "learned", "gain": "learned", "bias": "learned"}
SPECS = {
    "relu": AttentionSpec(),
    "gelu, numbers": AttentionSpec(activation="gelu", alpha=0.5, gain=1.5, bias=-0.25),
    "keys": AttentionSpec(length="keys"),
    "number": AttentionSpec(length=5, alpha=0.75),
    "scale": AttentionSpec(activation="gelu", scale=1.5, bias=0.25),
    "sigmoid": AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length"),
    "sigmoid, keys": AttentionSpec(activation="sigmoid", bias="-log_length", length="keys"),
    "learned": AttentionSpec(activation="softplus", **LEARNED, alpha_start=0.5, bias_start=0.3),
    "per head": AttentionSpec(**dict.fromkeys(LEARNED, "learned_per_head"), gain_start=2),
    "learned, number": AttentionSpec(alpha="learned", alpha_start=0.6, length=5),
    "gain": AttentionSpec(alpha=0.5, gain="learned", gain_start=0.2),
    "gain per head": AttentionSpec(alpha=0.5, gain="learned_per_head", gain_start=-2),
    "relu4/sum": AttentionSpec.parse("relu4/sum"),
    "sum, numbers": AttentionSpec(
        activation="relu2", normalize="sum", floor=0.05, gain=1.5, bias=0.25, length="keys"
    ),
    "sum, learned": AttentionSpec(
        activation="relu3",
        normalize="sum",
        gain="learned_per_head",
        gain_start=2,
        bias="learned",
        length=5,
    ),
    "sum, log": AttentionSpec(
        activation="sigmoid", normalize="sum", bias="-log_length", gain="learned", gain_start=0.5
    ),
    "exp/sum": AttentionSpec(activation="exp", normalize="sum", floor=0),
    "softmax": AttentionSpec(activation="softmax"),
}


def make_options():
    """Options of forward by name; all of them hide something."""
    generator = torch.Generator().manual_seed(3)
    hole = torch.rand(B, 1, L, L, generator=generator) < 0.7
    return {
        "all": {},
        "causal": {"causal": True},
        "lengths": {"key_lengths": torch.tensor([7, 3, 1])},
        "causal, lengths": {"causal": True, "key_lengths": torch.tensor([7, 4, 2])},
        "mask": {"mask": hole},
        "keys' mask": {"mask": torch.rand(B, 1, 1, L, generator=generator) < 0.7},
        "keys' weights": {"mask": torch.rand(L, generator=generator).double()},
        "float mask": {"mask": torch.rand(L, L, generator=generator).double()},
        "everything": {"causal": True, "key_lengths": torch.tensor([7, 6, 2]), "mask": hole},
    }


OPTIONS = make_options()


def make_layer(spec, seed=0, **settings):
    """An fp64 layer whose every parameter, learned numbers too, is off its start."""
    torch.manual_seed(seed)
    layer = Attention(E, H, spec, **settings).double()
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return layer


def make_x(seed=1, tokens=L, width=E):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, tokens, width, generator=generator, dtype=torch.float64)
