"""Which calls of a layer are one packed operator, and that they give what the others give."""

import pytest
import torch
from layers.samples import OPTIONS, SPECS, E, H, make_layer, make_x
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flashpoint import attention
from flashpoint.layers.attention import Attention
from flashpoint.layers.qk_norm import RMSNorm


class Recorder(TorchDispatchMode):
    """The operators that run, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def run_recorded(layer, x):
    with torch.no_grad(), Recorder() as recorder:
        layer(x)
    views = {"view", "_unsafe_view", "transpose", "split_with_sizes", "t", "clone", "slice"}
    return [name for name in recorder.names if name not in views | {"detach", "expand", "alias"}]


@pytest.mark.parametrize("qk_norm", ["none", "layer", "rms"])
def test_plain_layer_is_two_products_and_one_operator(qk_norm):
    layer = Attention(E, H, qk_norm=qk_norm)
    assert run_recorded(layer, make_x().float()) == ["addmm", "attention_qkvpacked", "addmm"]


def test_layer_that_cannot_pack_calls_the_general_operator():
    grouped = Attention(E, H, num_kv_heads=2)
    assert run_recorded(grouped, make_x().float()) == ["addmm", "attention", "addmm"]


class ScaledNorm(nn.LayerNorm):
    """Another arithmetic under a known name."""

    def forward(self, x):
        return 3 * super().forward(x) + 1


def hooked():
    norm = nn.LayerNorm(E // H, bias=False)
    norm.register_forward_hook(lambda module, given, o: 2 * o)
    return norm


@pytest.mark.parametrize(
    "make_norm",
    [
        lambda: nn.LayerNorm(E // H),  # with a bias, which the packed operator has not
        lambda: ScaledNorm(E // H, bias=False),
        lambda: RMSNorm(E // H),  # without an eps
        hooked,
    ],
    ids=["bias", "subclass", "eps", "hook"],
)
def test_other_norms_keep_a_layer_from_packing(make_norm):
    layer = Attention(E, H, qk_norm="layer")
    layer.q_norm = make_norm()
    x = make_x().float()
    names = run_recorded(layer, x)
    assert "attention" in names
    assert "attention_qkvpacked" not in names
    with torch.no_grad():
        q, k, v = layer.project(x)
        assert torch.equal(layer(x), layer.finish(x, q, k, v))


def test_layer_that_trains_keeps_its_norms_apart_on_a_cpu():
    layer, x = Attention(E, H, qk_norm="layer"), make_x().float()
    with Recorder() as recorder:
        layer(x)
    assert "attention_qkvpacked" not in recorder.names
    with Recorder() as recorder:
        Attention(E, H)(x)
    assert "attention_qkvpacked" in recorder.names


def separately(q, k, v, **options):
    """The same function under another name, which keeps the layer from packing."""
    return attention(q, k, v, **options)


PAIR = (attention, separately)


@pytest.mark.parametrize("options", ["all", "causal", "lengths", "causal, lengths"])
@pytest.mark.parametrize("qk_norm", ["none", "layer", "rms"])
@pytest.mark.parametrize("spec", [SPECS[name] for name in SPECS if name != "softmax"])
@pytest.mark.pairwise
def test_packed_layer_equals_the_general_operator(spec, qk_norm, options):
    found = []
    for attend in PAIR:
        layer = make_layer(spec, qk_norm=qk_norm, gate="silu", attend=attend)
        x = make_x().requires_grad_()
        o = layer(x, **OPTIONS[options])
        o.square().sum().backward()
        grads = {name: p.grad for name, p in layer.named_parameters()}
        with torch.no_grad():
            found.append({"o": layer(x, **OPTIONS[options]), "x": x.grad, **grads})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("qk_norm", ["layer", "rms"])
def test_packed_layer_rounds_like_the_general_operator_under_autocast(qk_norm):
    """Both normalize in fp32 and round q and k once, so that their bf16 results are the same."""
    layers = [make_layer(SPECS["relu"], qk_norm=qk_norm, attend=f).float() for f in PAIR]
    x = make_x().float()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        packed, general = (layer(x) for layer in layers)
    assert torch.equal(packed, general)
