"""The attention layer beside its formula, written out in fp64, and beside PyTorch's own."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from layers.samples import OPTIONS, SPECS, B, E, H, L, make_layer, make_x
from torch import nn

from flashpoint import attention
from flashpoint.errors import InputError
from flashpoint.layers.attention import Attention
from flashpoint.layers.output import GatedRMSNorm
from flashpoint.layers.spec import AttentionSpec

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "softplus": F.softplus, "sigmoid": torch.sigmoid}
ACTIVATIONS |= {f"relu{power}": lambda s, p=power: F.relu(s) ** p for power in (2, 3, 4)}
ACTIVATIONS |= {"exp": torch.exp}


def seen_by(num_queries, num_keys, mask=None, causal=False, key_lengths=None):
    """The visible pairs [B, 1, Lq, Lk], one by one."""
    seen = torch.zeros(B, 1, num_queries, num_keys, dtype=torch.bool)
    may = mask.expand_as(seen) if mask is not None and mask.dtype == torch.bool else None
    for b, i, j in itertools.product(range(B), range(num_queries), range(num_keys)):
        end = num_keys if key_lengths is None else key_lengths[b]
        late = causal and j > i + num_keys - num_queries
        seen[b, 0, i, j] = j < end and not late and (may is None or bool(may[b, 0, i, j]))
    return seen


def textbook_weights(layer, q, k, mask=None, **options):
    """The weights by the formula, head by head where numbers are learned per head."""
    spec = layer.spec
    seen = seen_by(q.shape[2], k.shape[2], mask, **options)
    scale = q.shape[-1] ** -0.5 if spec.scale is None else spec.scale
    scores = scale * torch.einsum("bhid,bhjd->bhij", q, k)
    if spec.activation == "softmax":
        exps = scores.exp() * seen
        return exps / exps.sum(-1, keepdim=True).clamp(min=1e-300)
    n = {"visible": seen.sum(-1, keepdim=True).double(), "keys": k.shape[2]}.get(spec.length)
    n = torch.as_tensor(spec.length if n is None else n, dtype=torch.float64).clamp(min=1)
    alpha, gain, bias = (
        getattr(layer, name)[:, None, None] if spec.learns(name) else getattr(spec, name)
        for name in ("alpha", "gain", "bias")
    )
    bias = -n.log() if spec.bias == "-log_length" else bias
    weights = ACTIVATIONS[spec.activation](scores + bias) * seen
    weights = weights if mask is None or mask.dtype == torch.bool else weights * mask
    if spec.normalize == "length":
        return gain * n**-alpha * weights
    return gain * weights / (weights.sum(-1, keepdim=True) + spec.floor * n).clamp(min=1e-300)


def textbook(layer, x, context=None, **options):
    """The whole layer, from its state dict."""
    state = layer.state_dict(keep_vars=True)
    source = x if context is None else context
    names = ("q", "kv") if layer.is_cross else ("qkv", "qkv")
    width, kv = E, layer.num_kv_heads * E // H
    q = F.linear(x, state[f"{names[0]}.weight"], state.get(f"{names[0]}.bias"))[..., :width]
    kv_of = F.linear(source, state[f"{names[1]}.weight"], state.get(f"{names[1]}.bias"))
    k, v = kv_of[..., -2 * kv : -kv], kv_of[..., -kv:]
    q, k, v = (t.reshape(*t.shape[:2], -1, E // H).transpose(1, 2) for t in (q, k, v))
    q, k = normed(layer, "q_norm", q), normed(layer, "k_norm", k)
    k, v = (t.repeat_interleave(H // layer.num_kv_heads, dim=1) for t in (k, v))
    o = textbook_weights(layer, q, k, **options) @ v
    o = o.transpose(1, 2).reshape(*x.shape[:2], E)
    o = normed_output(layer, o)
    if layer.gate is not None:
        gates = {"sigmoid": torch.sigmoid, "silu": F.silu, "identity": lambda z: z}
        o = o * gates[layer.gate_kind](x @ state["gate.weight"].T)
    return F.linear(o, state["proj.weight"], state.get("proj.bias"))


def normed(layer, name, x):
    module = getattr(layer, name)
    if isinstance(module, nn.LayerNorm):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()
    elif isinstance(module, nn.RMSNorm):
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    else:
        return x
    return x * module.weight


def normed_output(layer, o):
    if not isinstance(layer.norm, GatedRMSNorm):
        return normed(layer, "norm", o)
    return (
        o
        / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        * torch.sigmoid(layer.norm.weight * o)
    )


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def is_served(spec, options):
    mask = options.get("mask")
    return spec.activation != "softmax" or mask is None or mask.dtype == torch.bool


CASES = [
    pytest.param(spec, options, id=f"{name}-{which}")
    for (name, spec), (which, options) in itertools.product(SPECS.items(), OPTIONS.items())
    if is_served(spec, options)
]


@pytest.mark.parametrize(("spec", "options"), CASES)
def test_layer_matches_the_formula(spec, options):
    layer, x = make_layer(spec, qk_norm="layer"), make_x()
    assert_close(layer(x, **options), textbook(layer, x, **options))


@pytest.mark.parametrize(("spec", "options"), CASES)
def test_gradients_match_the_formulas(spec, options):
    layer, x = make_layer(spec), make_x()
    do = make_x(seed=2)
    got = torch.autograd.grad(layer(x, **options), list(layer.parameters()), do)
    expected = torch.autograd.grad(textbook(layer, x, **options), list(layer.parameters()), do)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(("spec", "options"), CASES)
def test_weights_of_rows_match_the_formula(spec, options):
    layer = make_layer(spec, num_kv_heads=2)
    q, k, v = layer.project(make_x())
    many = (t.repeat_interleave(2, dim=1) for t in (k, v))
    expected = textbook_weights(layer, q, next(many), **options)
    for rows in (slice(None), slice(0, 3), slice(3, L)):
        got = layer.weights(q, k, rows, **options)
        assert got.dtype == torch.float32
        torch.testing.assert_close(
            got.double(), expected[:, :, rows].expand_as(got), rtol=1e-4, atol=1e-6
        )
    o = layer.weights(q, k, **options).double() @ next(many)
    o = layer.proj(o.transpose(1, 2).flatten(2))
    torch.testing.assert_close(o, layer(make_x(), **options), rtol=1e-4, atol=1e-5)


SETTINGS = {
    "grouped": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1, "qk_norm": "rms"},
    "rms": {"qk_norm": "rms"},
    "no biases": {"qkv_bias": False, "proj_bias": False},
    "sigmoid gate": {"gate": "sigmoid"},
    "silu gate": {"gate": "silu"},
    "linear gate": {"gate": "identity"},
    "output layer norm": {"output_norm": "layer"},
    "output rms norm, gate": {"output_norm": "rms", "gate": "silu"},
    "gated rms norm": {"output_norm": "gated_rms"},
}


@pytest.mark.parametrize("word", ["relu", "gain per head", "relu4/sum", "softmax"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_match_the_formula(word, settings):
    layer, x = make_layer(SPECS[word], **settings), make_x()
    expected = textbook(layer, x, causal=True)
    assert_close(layer(x, causal=True), expected)
    with torch.no_grad():
        assert_close(layer(x, causal=True), expected)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [4, 11])
@pytest.mark.pairwise
def test_cross_attention_matches_the_formula(spec, causal, tokens):
    layer = make_layer(spec, context_dim=10, num_kv_heads=2, qk_norm="layer")
    x, context = make_x(), make_x(seed=5, tokens=tokens, width=10)
    assert_close(layer(x, context, causal=causal), textbook(layer, x, context, causal=causal))


def test_softmax_is_torchs_multihead_attention():
    layer, x = make_layer(SPECS["softmax"]), make_x()
    theirs = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight.data = layer.qkv.weight.data
    theirs.in_proj_bias.data = layer.qkv.bias.data
    theirs.out_proj.load_state_dict(layer.proj.state_dict())
    assert_close(layer(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("word", ["relu", "softmax", "relu4/sum", "exp/sum"])
def test_query_that_sees_nothing_gets_zeros_and_finite_gradients(word):
    layer, x = make_layer(SPECS[word], proj_bias=False), make_x()
    mask = torch.ones(L, L, dtype=torch.bool)
    mask[2] = False
    o = layer(x, mask=mask)
    assert (o[:, 2] == 0).all()
    o.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    q, k, _ = layer.project(x)
    weights = layer.weights(q, k, mask=mask)
    assert not weights[:, :, 2].any()
    weights.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("word", ["relu", "sigmoid", "softmax", "relu4/sum", "sum, log"])
def test_padding_changes_nothing(word):
    layer, x = make_layer(SPECS[word]), make_x()
    padded = torch.cat([x, make_x(seed=9, tokens=5)], dim=1)
    o = layer(padded, key_lengths=torch.full((B,), L))
    assert_close(o[:, :L], layer(x))


@pytest.mark.parametrize("which", [w for w in OPTIONS if is_served(SPECS["softmax"], OPTIONS[w])])
def test_exp_divided_by_its_sum_is_softmax(which):
    options = OPTIONS[which]
    layers = [make_layer(SPECS[word], num_kv_heads=2) for word in ("exp/sum", "softmax")]
    layers[0].load_state_dict(layers[1].state_dict())
    assert_close(layers[0](make_x(), **options), layers[1](make_x(), **options))


def test_row_of_zero_weights_gives_zeros_and_finite_gradients():
    """Every score negative, with a floor and without."""
    for floor in (1e-3, 0.0):
        spec = AttentionSpec(activation="relu4", normalize="sum", floor=floor)
        layer = make_layer(spec, qkv_bias=False, proj_bias=False)
        layer.qkv.weight.data[E : 2 * E] = -layer.qkv.weight.data[:E]  # k = -q
        x = make_x(tokens=1)
        layer(x).sum().backward()
        assert not layer(x).any()
        assert all(p.grad.isfinite().all() for p in layer.parameters())
        q, k, _ = layer.project(x)
        assert not layer.weights(q, k).any()


def test_sum_passes_normalization_and_no_alpha_to_the_operator():
    seen = []

    def attend(q, k, v, **options):
        seen.append(options)
        return attention(q, k, v, **options)

    for spec in ("relu4/sum", "relu"):
        Attention(E, H, spec, attend=attend)(make_x().float())
    assert seen[0]["normalize"] == "sum"
    assert seen[0]["floor"] == 1e-3
    assert "alpha" not in seen[0]
    assert "normalize" not in seen[1]  # as whoever attends knew it before


def test_learned_alpha_still_calls_the_operator_once():
    calls = []

    def attend(q, k, v, **options):
        calls.append(options)
        return attention(q, k, v, **options)

    spec = AttentionSpec(alpha="learned", alpha_start=0.25, bias="learned")
    layer = Attention(E, H, spec, attend=attend)
    layer(make_x().float(), causal=True)
    assert len(calls) == 1
    assert calls[0]["alpha"] == 1.0  # within fp16's range, whatever is learned
    assert calls[0]["bias"].requires_grad
    assert calls[0]["causal"]


@pytest.mark.parametrize("name", ["alpha", "gain", "bias"])
@pytest.mark.parametrize(("word", "size"), [("learned", 1), ("learned_per_head", H)])
def test_learned_number_starts_where_told(name, word, size):
    layer = Attention(E, H, AttentionSpec(**{name: word, f"{name}_start": 0.5}))
    assert getattr(layer, name).tolist() == [0.5] * size
    assert name in layer.state_dict()


def test_gain_leaves_proj_to_whoever_took_its_place():
    """A learned gain goes into proj's matrix in training, but not past hooks and adapters."""

    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight, self.bias = base, base.weight, base.bias

        def forward(self, x):
            return self.base(x) + 1.0

    torch.manual_seed(0)
    layer = Attention(8, 2, AttentionSpec(gain="learned_per_head", gain_start=3.0))
    x = torch.randn(2, 5, 8)
    plain = layer(x)
    torch.testing.assert_close(layer.eval()(x), plain)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), plain.detach())
    seen = []
    handle = layer.proj.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(layer(x), plain)
    assert seen == [1]
    handle.remove()
    layer.proj = Adapter(layer.proj)
    torch.testing.assert_close(layer(x), plain + 1.0)


@pytest.mark.parametrize("kind", ["layer", "rms", "gated_rms"])
def test_output_norm_starts_anew_and_leaves_zeros_alone(kind):
    layer = Attention(8, 2, output_norm=kind, proj_bias=False)
    start = 0.0 if kind == "gated_rms" else 1.0
    assert (layer.norm.weight == start).all()
    layer.norm.weight.data.fill_(7.0)
    layer.reset_parameters()
    assert (layer.norm.weight == start).all()
    x = torch.randn(2, 5, 8)
    assert not layer(x, key_lengths=torch.tensor([5, 0]))[1].any()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize("context_dim", [None, 64])
def test_kernels_of_q_k_and_v_start_smaller_if_told(context_dim):
    layers = []
    for qkv_init in (1.0, 0.5):
        torch.manual_seed(0)
        layers.append(Attention(64, 4, gate="silu", qkv_init=qkv_init, context_dim=context_dim))
    names = ("qkv",) if context_dim is None else ("q", "kv")
    for name, kernel in layers[0].named_parameters():
        factor = 0.5 if name.partition(".")[0] in names else 1.0
        torch.testing.assert_close(layers[1].get_parameter(name), factor * kernel)


def test_gain_may_be_wider_than_its_layer():
    layer = Attention(8, 2, AttentionSpec(gain="learned")).bfloat16()
    layer.gain.data = layer.gain.data.float()
    assert layer(torch.randn(2, 5, 8).bfloat16()).dtype == torch.bfloat16


def test_attend_keeps_its_own_scale_where_the_spec_has_none():
    x, attend = make_x(), partial(attention, scale=0.5)
    specs = (AttentionSpec(), AttentionSpec(scale=0.5), AttentionSpec(scale=0.5))
    bound, stated, both = (
        make_layer(spec, attend=function)(x)
        for spec, function in zip(specs, (attend, attention, attend), strict=True)
    )
    assert_close(bound, stated)
    assert_close(both, stated)
    assert not torch.allclose(make_layer(AttentionSpec())(x), stated)


@pytest.mark.parametrize("other", [SPECS["softmax"], SPECS["sigmoid"]])
def test_twins_have_the_same_parameters(other):
    shapes = [
        {name: tuple(t.shape) for name, t in Attention(E, H, spec, **s).state_dict().items()}
        for spec in (SPECS["relu"], other)
        for s in ({"qk_norm": "layer", "gate": "silu"},)
    ]
    assert shapes[0] == shapes[1]
    expected = {"qkv.weight", "qkv.bias", "q_norm.weight", "k_norm.weight", "gate.weight"}
    assert set(shapes[0]) == expected | {"proj.weight", "proj.bias"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attention(10, 3), "dim=10, num_heads=3"),
        (lambda: Attention(12, 4, num_kv_heads=3), "num_kv_heads=3"),
        (lambda: Attention(12, 4, num_kv_heads=0), "num_kv_heads=0"),
        (lambda: Attention(12, 4, qk_norm="layr"), "Did you mean 'layer'"),
        (lambda: Attention(12, 4, output_norm="lyer"), "Did you mean 'layer'"),
        (lambda: Attention(12, 4, gate="tanh"), "gate='tanh' is unknown"),
        (lambda: Attention(12, 4)(torch.ones(1, 2, 12), torch.ones(1, 2, 12)), "no context"),
        (lambda: Attention(12, 4)(torch.ones(1, 2, 6)), "takes [B, L, 12]"),
        (lambda: Attention(12, 4)(torch.ones(2, 12)), "x has shape [2, 12]"),
        (lambda: Attention(12, 4)(torch.ones(1, 2, 12).to_sparse()), "x is sparse_coo"),
        (
            lambda: Attention(12, 4, context_dim=6)(torch.ones(1, 2, 12), torch.ones(1, 2, 12)),
            "context has shape [1, 2, 12]; this layer takes [B, L, 6]",
        ),
        (lambda: Attention(12, 4, context_dim=6)(torch.ones(1, 2, 12)), "pass a context"),
        (
            lambda: Attention(12, 4, SPECS["softmax"])(torch.ones(1, 2, 12), mask=torch.ones(2)),
            "softmax attention takes a bool mask",
        ),
    ],
)
def test_wrong_use_is_one_line(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("context_dim", [None, 12])
@pytest.mark.parametrize("word", ["relu2", "softmax", "relu4/sum"])
def test_layer_takes_a_word_or_fields_for_its_spec(word, context_dim):
    spec = AttentionSpec.parse(word)
    for given in (word, spec.to_dict(), spec):
        layer = Attention(64, 4, given, context_dim=context_dim)
        assert layer.spec == spec
    with pytest.raises(InputError, match="Did you mean 'softmax'"):
        Attention(64, 4, "softmx")
    with pytest.raises(InputError, match="a name, a mapping or an AttentionSpec"):
        Attention(64, 4, None)
