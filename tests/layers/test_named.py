"""Relatives by name, each beside its paper's formula in plain float64 PyTorch."""

import math
from pathlib import Path

import pytest
import torch
import yaml

from flashpoint import AttentionSpec, create_model
from flashpoint.errors import InputError
from flashpoint.lab.training import config_file
from flashpoint.layers import Attention
from flashpoint.layers.named import RELATIVES
from flashpoint.ops.activation import find_activation

PAGE = Path(__file__).parents[2] / "docs" / "which-attention.md"
every_name = pytest.mark.parametrize("name", RELATIVES)


def weights_of(name, scores, seen):
    """The papers' weights; n: the keys that a query sees, N: all."""
    n, N = seen.sum(-1, keepdim=True), scores.shape[-1]
    weights = {
        "sigmoid_attention": lambda s: 1 / (1 + torch.exp(-(s - torch.log(n)))),
        "hstu": lambda s: s / (1 + torch.exp(-s)) / N,
        "rela": lambda s: s.clamp(min=0),
        "gau": lambda s: (s / N).clamp(min=0) ** 2,
        "polynomial": lambda s: s**3 / torch.sqrt(n),
        "threshold": lambda s: (s - 1.0).clamp(min=0) ** 2,
    }[name](scores)
    return weights * seen


def behind(name, z, x, state):
    """What the papers do with all heads' output z before the last projection."""
    if name == "hstu":
        centered = z - z.mean(-1, keepdim=True)
        z = centered / (centered.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        z = z * state["norm.weight"]
    if name in ("hstu", "gau"):
        gate = x @ state["gate.weight"].T
        return z * (gate / (1 + torch.exp(-gate)))
    if name == "rela":
        rms = (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return z / rms / (1 + torch.exp(-state["norm.weight"] * z))
    return z


def formula(name, layer, x, causal):
    """The whole layer from its state dict."""
    state, (B, L, E) = layer.state_dict(keep_vars=True), x.shape
    qkv = (x @ state["qkv.weight"].T + state["qkv.bias"]).reshape(B, L, 3, layer.num_heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    if name not in ("hstu", "gau"):  # whose papers, and the authors' code for them, have no root
        scores = scores / math.sqrt(q.shape[-1])
    seen = torch.ones(L, L, dtype=torch.float64)
    weights = weights_of(name, scores, seen.tril() if causal else seen)
    z = torch.einsum("bhij,bhjd->bihd", weights, v).reshape(B, L, E)
    return behind(name, z, x, state) @ state["proj.weight"].T + state["proj.bias"]


def draw(seed):
    """Sizes, a switch and inputs by chance."""
    rng = torch.Generator().manual_seed(seed)
    samples, tokens, heads, dim = (
        int(torch.randint(low, high, (), generator=rng))
        for low, high in ((1, 4), (1, 14), (1, 4), (1, 7))
    )
    x = torch.randn(samples, tokens, heads * dim, generator=rng, dtype=torch.float64)
    return x, heads, bool(seed % 2)


@every_name
@pytest.mark.parametrize("seed", range(8))
def test_relative_is_its_papers_formula(name, seed):
    x, heads, causal = draw(seed)
    torch.manual_seed(seed)
    layer = Attention(x.shape[2], heads, **AttentionSpec.named(name).for_layer()).double()
    for parameter in layer.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    runs = []
    for o in (layer(x, causal=causal), formula(name, layer, x, causal)):
        grads = torch.autograd.grad(o.square().sum(), list(layer.parameters()))
        runs.append([o, *grads])
    for got, expected in zip(*runs, strict=True):
        largest = expected.abs().max().item()
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11 * max(1.0, largest))


@every_name
def test_relative_is_a_setting_of_every_model(name):
    settings = AttentionSpec.named(name).for_model()
    sizes = {"width": 16, "depth": 1, "num_heads": 2, "image_size": 8, "patch_size": 4}
    images = create_model("vit", **sizes, num_classes=3, **settings)
    text = create_model("reluformer_tiny", vocabulary_size=9, **settings)
    tokens = torch.randint(9, (2, 5))
    for o in (images(torch.randn(2, 3, 8, 8)), text(tokens, tokens)):
        assert o.isfinite().all()
    layers = [m for m in (*images.modules(), *text.modules()) if isinstance(m, Attention)]
    assert {layer.spec for layer in layers} == {settings["attention"]}
    assert {layer.gate_kind for layer in layers} == {settings["gate"]}


@every_name
def test_relative_may_stand_in_a_config(name):
    settings = AttentionSpec.named(name).for_model()
    model = {"name": "vit_ti16"} | settings | {"attention": settings["attention"].to_dict()}
    data = {"train": "a", "validation": "b"}
    config = config_file.parse({"model": model, "data": data, "steps": 1})
    assert config_file.parse(yaml.safe_load(config_file.dump(config))) == config


def test_unknown_name_is_one_line_with_those_that_are_known():
    with pytest.raises(InputError, match=r"name='hst' is unknown. Did you mean 'hstu'") as error:
        AttentionSpec.named("hst")
    assert all(name in str(error.value) for name in RELATIVES)
    assert "\n" not in str(error.value)


def test_docstring_lists_all_names():
    assert f"Known: {', '.join(RELATIVES)}." in AttentionSpec.named.__doc__


@every_name
def test_page_has_a_row_for_every_relative(name):
    rows = [line for line in PAGE.read_text().splitlines() if f"name `{name}`" in line]
    assert len(rows) == 1
    assert f"https://arxiv.org/abs/{RELATIVES[name].paper}" in rows[0]


def test_cube_is_its_formula_with_its_slope():
    cube = find_activation("cube")
    scores = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(cube.weights_of(scores).sum(), scores)
    torch.testing.assert_close(cube.weights_of(scores), scores**3)
    torch.testing.assert_close(cube.slopes_of(scores), slopes)
    assert not cube.is_nonnegative
