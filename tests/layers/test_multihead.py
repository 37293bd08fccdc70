"""The layer in the place of torch.nn.MultiheadAttention, alone and in Transformer layers."""

import random

import pytest
import torch
from torch import nn

from flashpoint import InputError, UnsupportedError
from flashpoint.layers import Attention, MultiheadAttention
from flashpoint.layers.spec import AttentionSpec

E, H, N, L, S = 16, 4, 3, 5, 7
LEARNED = AttentionSpec(alpha="learned", alpha_start=0.5, gain="learned_per_head", bias="learned")
SPECS = ["relu", "relu4/sum", "sigmoid", LEARNED, "softmax"]


def make_pair(spec="softmax", **settings):
    """PyTorch's layer and ours with its weights, in fp64."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, **settings).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = MultiheadAttention(E, H, spec, **settings).double()
    ours.load_state_dict(theirs.state_dict(), strict=spec is not LEARNED)
    return theirs, ours


def draw_case(seed):
    """Settings, inputs and options of a call, as PyTorch takes them."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kdim, vdim = rng.choice([(None, None), (None, None), (6, 10)])
    is_self, batched = kdim is None and rng.random() < 0.4, rng.random() < 0.8
    settings = {"batch_first": rng.random() < 0.5, "bias": rng.random() < 0.7}
    settings |= {"kdim": kdim, "vdim": vdim}
    keys = L if is_self else S
    sizes = [(L, E), (keys, kdim or E), (keys, vdim or E)]
    q, k, v = (torch.randn(N, *size, dtype=torch.float64) for size in sizes)
    k, v = (q, q) if is_self else (k, v)
    if not batched:
        q, k, v = (q[0],) * 3 if is_self else (q[0], k[0], v[0])
    elif not settings["batch_first"]:
        turned = q.transpose(0, 1)
        q, k, v = (turned,) * 3 if is_self else (turned, k.transpose(0, 1), v.transpose(0, 1))
    options = {"need_weights": rng.random() < 0.7, "average_attn_weights": rng.random() < 0.5}
    kind = rng.choice(["none", "bool", "float"])
    if kind != "none":
        heads = (N * H if batched else H,) if rng.random() < 0.4 else ()
        options["attn_mask"] = draw_mask((*heads, L, keys), kind)
        if rng.random() < 0.6:
            options["key_padding_mask"] = draw_mask(((N,) if batched else ()) + (keys,), kind)
    return settings, (q, k, v), options


def draw_mask(shape, kind):
    hidden = torch.rand(shape) < 0.3
    hidden[..., 0] = False  # PyTorch gives NaN to a query that sees nothing
    if kind == "bool":
        return hidden
    return torch.randn(shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize("seed", range(40))
def test_softmax_is_pytorchs_layer(seed):
    settings, inputs, options = draw_case(seed)
    theirs, ours = make_pair(**settings)
    (o, weights), (expected, their_weights) = ours(*inputs, **options), theirs(*inputs, **options)
    torch.testing.assert_close(o, expected)
    assert (weights is None) == (their_weights is None)
    if weights is not None:  # formed in fp32
        torch.testing.assert_close(weights, their_weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_self_attention_is_that_of_our_other_layer(spec):
    _, ours = make_pair(spec, batch_first=True)
    other = Attention(E, H, spec).double()
    other.load_state_dict(
        {
            "qkv.weight": ours.in_proj_weight,
            "qkv.bias": ours.in_proj_bias,
            "proj.weight": ours.out_proj.weight,
            "proj.bias": ours.out_proj.bias,
        }
        | {name: p for name, p in ours.named_parameters() if name in ("alpha", "gain", "bias")}
    )
    x = torch.randn(N, L, E, dtype=torch.float64)
    hidden = torch.arange(L) >= torch.tensor([[L], [2], [4]])
    lengths = torch.tensor([L, 2, 4])
    causal = torch.ones(L, L).triu(1) > 0
    for ways, expected in (
        ([{}], other(x)),
        ([{"key_padding_mask": hidden}], other(x, key_lengths=lengths)),
        ([{"attn_mask": causal}, {"attn_mask": causal, "is_causal": True}], other(x, causal=True)),
        (
            [{"attn_mask": causal, "is_causal": True, "key_padding_mask": hidden}],
            other(x, causal=True, key_lengths=lengths),
        ),
    ):
        for options in ways:
            for need_weights in (False, True):
                o, weights = ours(x, x, x, need_weights=need_weights, **options)
                torch.testing.assert_close(o, expected)
                assert (weights is None) != need_weights


def make_encoder_layer(spec, **settings):
    """PyTorch's layer with our attention inside, and what it was with."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, **settings)
    old = layer.self_attn
    layer.self_attn = MultiheadAttention(E, H, spec, batch_first=True)
    layer.self_attn.load_state_dict(old.state_dict())
    return layer, old


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("spec", ["softmax", "relu"])
def test_encoder_layer_calls_it_in_training_and_on_no_fast_path(spec, norm_first):
    layer, old = make_encoder_layer(spec, norm_first=norm_first)
    x, hidden = torch.randn(N, L, E), torch.arange(L) >= torch.tensor([[L], [2], [4]])
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    calls = []
    layer.self_attn.register_forward_hook(lambda *_: calls.append(1))
    for options in ({}, {"src_key_padding_mask": hidden}, {"src_mask": causal, "is_causal": True}):
        trained = layer.train()(x, **options)
        with torch.no_grad():
            layer.self_attn._forward_hooks.clear()  # hooks alone would keep the fast path off
            found = layer.eval()(x, **options)
            torch.testing.assert_close(found, trained.detach())
            mine, layer.self_attn = layer.self_attn, old
            theirs = layer(x, **options)
            layer.self_attn = mine
        real = ~hidden if "src_key_padding_mask" in options else torch.ones(N, L) > 0
        assert torch.allclose(found[real], theirs[real], atol=1e-5) == (spec == "softmax")
    assert calls


@pytest.mark.parametrize("spec", ["softmax", "relu"])
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
def test_encoder_with_padding_computes_the_same_in_evaluation(spec):
    """PyTorch's encoder packs its input if its layers had a fast path when it was made."""
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(plain, 2)
    x, hidden = torch.randn(N, L, E), torch.arange(L) >= torch.tensor([[L], [2], [4]])
    with torch.no_grad():
        theirs = encoder.eval()(x, src_key_padding_mask=hidden)
    for layer in encoder.layers:
        old, layer.self_attn = layer.self_attn, MultiheadAttention(E, H, spec, batch_first=True)
        layer.self_attn.load_state_dict(old.state_dict())
    trained = encoder.train()(x, src_key_padding_mask=hidden)[~hidden]
    with torch.no_grad():
        found = encoder.eval()(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(found[~hidden], trained.detach())
    assert torch.allclose(found, theirs, atol=1e-5) == (spec == "softmax")


def test_decoder_layer_takes_it_twice():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0)
    x, memory = torch.randn(L, N, E), torch.randn(S, N, E)
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    options = {"tgt_mask": causal, "tgt_is_causal": True}
    expected = layer(x, memory, **options)
    for name in ("self_attn", "multihead_attn"):
        ours = MultiheadAttention(E, H, "softmax")
        ours.load_state_dict(getattr(layer, name).state_dict())
        setattr(layer, name, ours)
    torch.testing.assert_close(layer(x, memory, **options), expected)


def test_weights_start_as_pytorchs():
    for settings in ({}, {"kdim": 6, "vdim": 10}, {"bias": False}):
        torch.manual_seed(0)
        theirs = nn.MultiheadAttention(E, H, **settings)
        ours = MultiheadAttention(E, H, **settings)
        shapes = [{n: p.shape for n, p in m.named_parameters()} for m in (theirs, ours)]
        assert shapes[0] == shapes[1]
        for name, parameter in ours.named_parameters():
            bound = theirs.get_parameter(name).abs().max().item()
            assert parameter.abs().max().item() == pytest.approx(bound, rel=0.1), name


def test_wrong_use_is_one_line():
    layer, x = MultiheadAttention(E, H, "relu"), torch.randn(L, N, E)
    for call, message in (
        (lambda: MultiheadAttention(E, H, dropout=0.1), r"dropout=0\.1 drops attention weights"),
        (lambda: MultiheadAttention(E, H, add_bias_kv=True), "add_bias_kv=True, add_zero_attn=F"),
        (lambda: layer(x, x, x, is_causal=True), "is_causal=True is a hint about attn_mask"),
        (lambda: layer(x, x[0], x), "must all have a batch, or none"),
        (lambda: MultiheadAttention(E, 3), "heads must divide the dim"),
    ):
        with pytest.raises((InputError, UnsupportedError), match=message):
            call()


@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_of_other_shapes_are_refused_as_pytorch_does(batch_first):
    settings = {"batch_first": batch_first}
    x = torch.randn((N, L, E) if batch_first else (L, N, E))
    hides_nothing = torch.zeros(L, N, dtype=torch.bool)  # [S, N], where [N, S] is meant
    wrong = (
        {"key_padding_mask": hides_nothing},
        {"attn_mask": torch.zeros(1, L)},
        {"attn_mask": torch.zeros(N, L, L)},
        {"attn_mask": torch.zeros(N, 1, L, L)},
    )
    for options in wrong:
        (name,) = options
        with pytest.raises((AssertionError, RuntimeError)):
            nn.MultiheadAttention(E, H, **settings)(x, x, x, **options)
        with pytest.raises(InputError, match=f"{name} has shape .* expected"):
            MultiheadAttention(E, H, "relu", **settings)(x, x, x, **options)
