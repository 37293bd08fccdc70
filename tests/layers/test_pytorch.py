"""The layer under PyTorch's machinery, and what comes out of it at initialization."""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec

E, H = 32, 4
LEARNED = AttentionSpec(alpha="learned", gain="learned_per_head", bias="learned", bias_start=0.1)
SPECS = {
    "relu": AttentionSpec(),
    "learned": LEARNED,
    "sigmoid": AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length"),
    "softmax": AttentionSpec(activation="softmax"),
}
LENGTH, WIDTH = 512, 1024
RELU_EXCESS = 1 + LENGTH / (2 * WIDTH)


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests():
    torch.compiler.reset()


def make_layer(spec, **settings):
    torch.manual_seed(0)
    return Attention(E, H, spec, qk_norm="layer", **settings)


def gradients(call, layer, x):
    """Output and gradients of a call, by name."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    o = call(x)
    o.float().square().sum().backward()
    grads = {name: p.grad.clone() for name, p in layer.named_parameters()}
    return {"o": o.detach(), "x": x.grad, **grads}


@pytest.mark.slow
@pytest.mark.parametrize(("kv_heads", "dynamic"), [(2, False), (H, True)])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_compiled_layer_is_one_graph_with_the_same_results(spec, kv_heads, dynamic):
    layer = make_layer(spec, num_kv_heads=kv_heads, gate="silu")
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 9, E), (3, 14, E)):
        x = torch.randn(shape)
        eager, traced = gradients(layer, layer, x), gradients(compiled, layer, x)
        for name, value in eager.items():
            torch.testing.assert_close(traced[name], value, rtol=1e-4, atol=1e-5, msg=name)
        causal, plain = compiled(x, causal=True), layer(x, causal=True)
        torch.testing.assert_close(causal, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_autocast_computes_in_bf16_near_fp32(spec):
    layer, x = make_layer(spec, gate="sigmoid"), torch.randn(2, 20, E)
    with torch.autocast("cpu", torch.bfloat16):
        o = layer(x, causal=True)
    assert o.dtype == torch.bfloat16
    exact = layer(x, causal=True)
    assert (o - exact).norm() < 0.02 * exact.norm()
    o.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_weights_are_exact_under_autocast(spec):
    layer, x = make_layer(spec), torch.randn(2, 20, E)
    q, k, _ = layer.project(x)
    with torch.autocast("cpu", torch.bfloat16):
        weights = layer.weights(q, k, slice(3, 9))
    torch.testing.assert_close(weights, layer.weights(q, k)[:, :, 3:9])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_checkpointed_layer_has_the_same_gradients(spec):
    layer, x = make_layer(spec), torch.randn(2, 9, E)
    again = gradients(lambda x: checkpoint(layer, x, use_reentrant=False), layer, x)
    for name, value in gradients(layer, layer, x).items():
        assert torch.equal(again[name], value), name


def test_learned_alpha_keeps_sums_within_fp16s_range():
    """1024 weights of 72 on values of 3 are 221,184 before the factor; fp16 ends at 65,504."""
    spec = AttentionSpec(alpha="learned", alpha_start=0.9)
    layer = Attention(64, 1, spec).half()
    with torch.no_grad():
        layer.qkv.weight.copy_(3.0 * torch.eye(64).repeat(3, 1))
        layer.proj.weight.copy_(torch.eye(64))
        o = layer(torch.ones(1, 1024, 64, dtype=torch.half))
    torch.testing.assert_close(o.float(), torch.full_like(o, 432.0).float(), rtol=2e-3, atol=0)


@pytest.mark.parametrize(
    ("spec", "variance"),
    [
        (AttentionSpec(), 1 / (2 * LENGTH) * RELU_EXCESS),
        (AttentionSpec(activation="softmax"), math.e / LENGTH + 1 / WIDTH),
        (AttentionSpec(alpha=0), LENGTH / 2 * RELU_EXCESS),
        (AttentionSpec(alpha=0.5, gain=math.sqrt(2)), RELU_EXCESS),
        (AttentionSpec(alpha="learned", alpha_start=0.5), RELU_EXCESS / 2),
    ],
    ids=["relu / L", "softmax", "relu", "relu / sqrt(L / 2)", "learned alpha"],
)
def test_output_variance_at_initialization(spec, variance):
    """qk-norm makes scores, and xavier kernels make v, standard normal: the paper's setting.

    There v is independent of the scores. In a layer k and v come of the same token: the mean over
    tokens is half of (softmax: all of) Wv Wk' q, which adds 1/(4 E) (softmax: 1/E).
    """
    torch.manual_seed(0)
    layer = Attention(WIDTH, 16, spec, qk_norm="layer", proj_bias=False)
    with torch.no_grad():
        layer.proj.weight.copy_(torch.eye(WIDTH))
        o = layer(torch.randn(4, LENGTH, WIDTH))
    assert o.var().item() == pytest.approx(variance, rel=0.05)


def test_kernels_of_q_k_and_v_are_xavier_matrices_of_their_own():
    torch.manual_seed(0)
    layer = Attention(256, 4, num_kv_heads=1, gate="silu")
    kernels = {"q": (0, 256), "k": (256, 320), "v": (320, 384)}
    for name, (start, end) in kernels.items():
        kernel = layer.qkv.weight[start:end]
        limit = math.sqrt(6 / (256 + end - start))
        assert 0.99 * limit < kernel.abs().max().item() <= limit, name
        assert kernel.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02), name
    for square in (layer.proj.weight, layer.gate.weight):
        assert square.std().item() == pytest.approx(math.sqrt(2 / 512), rel=0.02)
    assert not layer.qkv.bias.any()
    assert not layer.proj.bias.any()


def test_reset_brings_back_every_start():
    layer = make_layer(LEARNED)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7.0)
    layer.reset_parameters()
    assert (layer.alpha.item(), layer.bias.item()) == (1.0, pytest.approx(0.1))
    assert all((p != 7.0).all() for p in layer.parameters())
