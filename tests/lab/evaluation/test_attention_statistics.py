"""Attention statistics against the whole matrix of weights, which they never form."""

import json
import math

import pytest
import torch
from torch import nn

from flashpoint.errors import InputError
from flashpoint.lab.evaluation import attention_calls
from flashpoint.lab.evaluation.attention_statistics import HeadStatistics, measure_attention
from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec


class Stack(nn.Module):
    """Attention layers one after another, on tokens in an image's place."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def make_layer(activation, *, heads=2, dim=16, **options):
    torch.manual_seed(0)
    return Attention(dim, heads, AttentionSpec(activation=activation, **options))


def make_tokens(batch, length, dim=16, seed=0):
    return torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(seed))


def whole_weights(layer, x):
    q, k, _ = layer.project(x)
    return layer.weights(q, k).detach().double()  # [B, H, L, L]


def share_of_zero_tiles(weights, tile):
    """One tile after another, in plain loops."""
    length, found = weights.shape[-1], []
    for b in range(len(weights)):
        for i in range(0, length, tile):
            for j in range(0, length, tile):
                found.append(not weights[b, i : i + tile, j : j + tile].any())
    return sum(found) / len(found)


@pytest.mark.parametrize("gain", [1.0, 1e-4])
@pytest.mark.parametrize("activation", ["relu", "softmax", "gelu", "identity"])
@pytest.mark.parametrize("length", [1, 16, 150, 257])
def test_statistics_are_those_of_the_whole_matrix(activation, length, gain):
    layer = make_layer(activation, **({} if activation == "softmax" else {"gain": gain}))
    batches = [make_tokens(2, length), make_tokens(1, length, seed=1)]
    found = measure_attention(Stack(layer), batches)
    weights = torch.cat([whole_weights(layer, x) for x in batches])
    assert (found.num_images, found.num_keys) == (3, length)
    for head, stats in enumerate(found.heads):
        w = weights[:, head]
        size = w.abs().sum(-1, keepdim=True)
        live = size[..., 0] > 0
        rows = (w.abs() / size)[live]
        entropy = -torch.special.xlogy(rows, rows).sum(-1).mean().item()
        assert (stats.layer, stats.head) == (0, head)
        assert stats.sparsity == pytest.approx((w == 0).double().mean().item(), abs=1e-12)
        assert stats.mass == pytest.approx(w.sum(-1).mean().item(), abs=1e-6)
        assert stats.empty_rows == pytest.approx(1 - live.double().mean().item(), abs=1e-12)
        assert stats.zero_tiles_64 == pytest.approx(share_of_zero_tiles(w, 64), abs=1e-12)
        assert stats.zero_tiles_128 == pytest.approx(share_of_zero_tiles(w, 128), abs=1e-12)
        if live.any():
            assert stats.entropy == pytest.approx(entropy, abs=1e-5)


def test_softmax_has_mass_one_and_relu_is_sparse():
    x = make_tokens(4, 64)
    softmax, relu = (measure_attention(Stack(make_layer(a)), [x]) for a in ("softmax", "relu"))
    for stats in softmax.heads:
        assert stats.mass == pytest.approx(1.0, abs=1e-5)
        assert stats.sparsity == 0.0
        assert 0 < stats.entropy < softmax.max_entropy == math.log(64)
    assert all(0.3 < stats.sparsity < 0.7 for stats in relu.heads)


def test_equal_weights_have_the_greatest_entropy():
    layer = make_layer("sigmoid")
    with torch.no_grad():
        layer.qkv.weight.zero_()
    found = measure_attention(Stack(layer), [make_tokens(1, 50)])
    for stats in found.heads:
        assert stats.entropy == pytest.approx(found.max_entropy, abs=1e-6)
        assert stats.mass == pytest.approx(0.5, abs=1e-6)


def test_zero_tiles_are_found_where_they_are():
    """Keys 0 to 63 against queries 64 to 127 give scores below zero, all else above."""
    layer = make_layer("relu", heads=1, dim=4)
    signs = torch.ones(128)
    signs[64:] = -1.0
    x = torch.zeros(1, 128, 4)
    x[0, :, 0], x[0, :, 1] = signs, 1.0
    with torch.no_grad():
        layer.qkv.weight.zero_()
        layer.qkv.weight[0, 0] = 1.0  # q = (sign, 1, 0, 0)
        layer.qkv.weight[1, 1] = 1.0
        layer.qkv.weight[4, 0] = layer.qkv.weight[4, 1] = 1.0  # k = (sign + 1, 0.5, 0, 0)
        layer.qkv.weight[5, 1] = 0.5
    (stats,) = measure_attention(Stack(layer), [x]).heads
    assert stats.zero_tiles_64 == 0.25
    assert stats.zero_tiles_128 == 0.0
    assert stats.sparsity == 0.25
    assert not stats.is_dead


def test_dead_head_is_named_and_divides_nothing_by_zero():
    layer = make_layer("relu")
    with torch.no_grad():
        layer.qkv.weight[:8] = 0.0  # q of the first head: every score is zero
    dead, alive = measure_attention(Stack(layer), [make_tokens(2, 20)]).heads
    assert dead.is_dead
    assert (dead.mass, dead.sparsity, dead.empty_rows, dead.entropy) == (0.0, 1.0, 1.0, None)
    assert not alive.is_dead


def test_a_head_alive_for_one_image_is_not_dead():
    layer = make_layer("relu")
    blank, alive = torch.zeros(1, 20, 16), make_tokens(1, 20)
    found = measure_attention(Stack(layer), [blank, alive, blank])
    alone = measure_attention(Stack(layer), [alive])
    for stats, seen in zip(found.heads, alone.heads, strict=True):
        assert not stats.is_dead
        assert stats.empty_rows == pytest.approx((2 + seen.empty_rows) / 3)
        assert stats.entropy == pytest.approx(seen.entropy)  # blank rows have none
        assert stats.mass == pytest.approx(seen.mass / 3)


def test_layers_and_heads_come_in_order_of_the_model():
    found = measure_attention(Stack(make_layer("relu"), make_layer("relu")), [make_tokens(1, 8)])
    assert [(s.layer, s.head) for s in found.heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_every_query_is_looked_at_once_in_blocks(monkeypatch):
    asked = []
    weights = Attention.weights

    def record(self, q, k, rows, **options):
        asked.append((rows.start, rows.stop))
        return weights(self, q, k, rows, **options)

    monkeypatch.setattr(Attention, "weights", record)
    measure_attention(Stack(make_layer("relu")), [make_tokens(1, 300)])
    assert asked == [(0, 128), (128, 256), (256, 300)]


def test_memory_grows_with_length_not_with_its_square():
    """Blocks at 8 times the length are 8 times as large."""
    largest = []
    for length in (256, 2048):
        layer = make_layer("relu")
        sizes = []
        with attention_calls.watch(
            Stack(layer), lambda call, sizes=sizes: sizes.extend(b.numel() for b in call.blocks())
        ) as _:
            layer(make_tokens(1, length))
        largest.append(max(sizes))
    assert largest[1] == 8 * largest[0]


def test_options_of_a_call_reach_the_weights():
    class Causal(Stack):
        def forward(self, x):
            return self.layers[0](x, causal=True)

    layer = make_layer("softmax")
    found = measure_attention(Causal(layer), [make_tokens(1, 64)])
    assert all(stats.sparsity == pytest.approx(63 / 128) for stats in found.heads)


def test_the_model_is_left_as_it_was():
    model = Stack(make_layer("relu")).train()
    before = model(make_tokens(1, 8))
    measure_attention(model, [make_tokens(1, 8)])
    assert model.training
    assert not model.layers[0]._forward_pre_hooks
    assert torch.equal(model(make_tokens(1, 8)), before)


def test_statistics_survive_json():
    found = measure_attention(Stack(make_layer("relu")), [make_tokens(2, 20)])
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert tuple(HeadStatistics(**head) for head in data["heads"]) == found.heads


def test_a_model_without_attention_is_refused():
    with pytest.raises(InputError, match="Linear has no attention layers"):
        measure_attention(nn.Linear(2, 2), [torch.ones(1, 2)])
