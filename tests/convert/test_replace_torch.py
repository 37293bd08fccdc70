import copy
import math
import pickle
import warnings

import pytest
import torch
from convert.foreign import SOFTMAX, assert_same, close, stir
from torch import nn

from flashpoint import InputError, UnsupportedError, replace_attention, restore_attention

KINDS = {
    "plain": {},
    "batch-second": {"batch_first": False},
    "no-bias": {"bias": False},
    "widths": {"kdim": 24, "vdim": 16},
    "odd-heads": {"num_heads": 1},
}
NEG = -math.inf


def make(kind="plain"):
    options = {"num_heads": 4, "batch_first": True} | KINDS[kind]
    return stir(nn.MultiheadAttention(32, **options))


def tensors(module, is_self=False):
    """Two sequences of 5 queries and 7 keys, as the module wants them."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 5, 32, generator=generator)
    k = torch.randn(2, 7, module.kdim, generator=generator)
    v = torch.randn(2, 7, module.vdim, generator=generator)
    q, k, v = (q, q, q) if is_self else (q, k, v)
    if module.batch_first:
        return q, k, v
    turned = q.transpose(0, 1)
    return (turned,) * 3 if is_self else (turned, k.transpose(0, 1), v.transpose(0, 1))


def masks(kind, num_keys=7):
    """attn_mask and key_padding_mask; True hides, as torch.nn has it."""
    hidden = torch.zeros(5, num_keys, dtype=torch.bool)
    hidden[0, 1:3] = hidden[3, 4] = True
    padded = torch.zeros(2, num_keys, dtype=torch.bool)
    padded[1, -2:] = True
    added = torch.linspace(-1, 1, 5 * num_keys).view(5, num_keys).masked_fill(hidden, NEG)
    by_head = torch.linspace(-1, 1, 8 * 5 * num_keys).view(8, 5, num_keys)
    return {
        "none": {},
        "bool": {"attn_mask": hidden},
        "padding": {"key_padding_mask": padded},
        "both": {"attn_mask": hidden, "key_padding_mask": padded},
        "added": {"attn_mask": added, "key_padding_mask": torch.zeros(2, num_keys)},
        "by-head": {"attn_mask": by_head},
    }[kind]


@pytest.mark.parametrize("word", SOFTMAX)
@pytest.mark.parametrize(
    ("kind", "mask"),
    [(k, "none") for k in KINDS]
    + [("plain", m) for m in ("bool", "padding", "both", "added", "by-head")]
    + [("batch-second", "both"), ("widths", "added")],
)
def test_softmax_reproduces_the_module(kind, mask, word):
    module = make(kind)
    if mask == "by-head":
        assert module.num_heads == 4
    replaced = copy.deepcopy(module)
    replace_attention(replaced, SOFTMAX[word])
    for weights in ({}, {"average_attn_weights": False}):
        expected, got = (x(*tensors(module), **masks(mask), **weights) for x in (module, replaced))
        close(got[0], expected[0], 1e-5)
        close(got[1], expected[1], 1e-5)
    options = masks(mask) | {"need_weights": False}
    assert replaced(*tensors(module), **options)[1] is None
    assert_same(module, replaced, lambda x: x(*tensors(module), **options)[0])


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_self_attention_in_every_mode(mode):
    module = make()
    replaced = copy.deepcopy(module)
    replace_attention(replaced, SOFTMAX["exp"])
    x = tensors(module, is_self=True)
    with torch.set_grad_enabled(mode != "no_grad"):
        expected, got = (y.train(mode == "train")(*x) for y in (module, replaced))
    close(got[0], expected[0], 1e-5)
    close(got[1], expected[1], 1e-5)


def test_unbatched_input_stays_unbatched():
    module = make()
    q, k, v = (x[0] for x in tensors(module))
    padded = torch.tensor([False] * 5 + [True] * 2)
    expected = module(q, k, v, key_padding_mask=padded)
    replace_attention(module, SOFTMAX["exp"])
    got = module(q, k, v, key_padding_mask=padded)
    close(got[0], expected[0], 1e-5)
    close(got[1], expected[1], 1e-5)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (
            {"key_padding_mask": torch.zeros(7, 2, dtype=torch.bool)},
            r"\[7, 2\], expected \[2, 7\]",
        ),
        ({"key_padding_mask": torch.zeros(1, 7)}, r"\[1, 7\], expected \[2, 7\]"),
        ({"key_padding_mask": torch.zeros(14)}, r"\[14\], expected \[2, 7\]"),
        (
            {"key_padding_mask": torch.zeros(2, 7).byte()},
            "is uint8, expected bool",
        ),
        ({"attn_mask": torch.zeros(5, 7).long()}, "is int64, expected bool"),
        ({"attn_mask": torch.zeros(7, 5)}, r"\[7, 5\], expected \[5, 7\] or \[8, 5, 7\]"),
        ({"attn_mask": torch.zeros(1, 5, 7)}, r"\[1, 5, 7\], expected"),
        ({"attn_mask": torch.zeros(2, 4, 5, 7)}, r"\[2, 4, 5, 7\], expected"),
    ],
)
def test_masks_that_pytorch_refuses_are_refused(mask, said):
    module = make()
    with pytest.raises((AssertionError, RuntimeError)):
        module(*tensors(module), **mask)
    replace_attention(module, "relu")
    with pytest.raises(InputError, match=said):
        module(*tensors(module), **mask)


@pytest.mark.parametrize("dims", [(4, 4, 4), (3, 2, 2), (1, 1, 1)])
def test_other_numbers_of_dims_are_refused(dims):
    module = make()
    replace_attention(module, "relu")
    with pytest.raises(InputError, match=r"all have 2 or all 3 dims\. Got \["):
        module(*(torch.zeros(*(2,) * (d - 1), 32) for d in dims))


def test_causal_hint_needs_its_mask_and_equals_it():
    module = make()
    replace_attention(module, "relu")
    x = tensors(module, is_self=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    expected = module(*x, attn_mask=mask)
    for padding in (None, torch.zeros(2, 5)):
        options = {"attn_mask": mask, "is_causal": True, "key_padding_mask": padding}
        got = module(*x, **options)
        close(got[0], expected[0], 1e-6)
        close(got[1], expected[1], 1e-6)
    with pytest.raises(InputError, match=r"Pass attn_mask too"):
        module(*x, is_causal=True)


def test_relu_is_computed_by_the_definition_and_gives_its_weights():
    module = make()
    q, k, v = tensors(module)
    replace_attention(module, "relu")
    weights = zip(module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True)
    parts = [x @ w.T + b for x, (w, b) in zip((q, k, v), weights, strict=True)]
    hq, hk, hv = (x.view(2, -1, 4, 8).transpose(1, 2) for x in parts)
    padded = masks("padding")["key_padding_mask"]
    w = (8**-0.5 * hq @ hk.mT).relu().masked_fill(padded[:, None, None], 0)
    w = w / (~padded).sum(1).view(2, 1, 1, 1)
    expected = module.out_proj((w @ hv).transpose(1, 2).flatten(2))
    got, mean = module(q, k, v, key_padding_mask=padded)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(mean, w.mean(1))


def test_weights_of_many_keys_are_made_in_parts():
    module = make()
    x = torch.randn(1, 130, 32)
    expected = module(x, x, x)[1]
    replace_attention(module, SOFTMAX["exp"])
    close(module(x, x, x)[1], expected, 1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"add_bias_kv": True}, "add_bias_kv=True adds"), ({"add_zero_attn": True}, "of zeros")],
)
def test_added_keys_are_refused(options, reason):
    model = nn.Sequential(nn.MultiheadAttention(32, 4, **options), nn.MultiheadAttention(32, 4))
    with pytest.raises(UnsupportedError, match=rf"^0 cannot be replaced: .*{reason}"):
        replace_attention(model)
    report = replace_attention(model, layers=[0])
    assert [entry.name for entry in report.replaced] == ["1"]


def layer(kind, **options):
    sizes = {"d_model": 32, "nhead": 4, "dim_feedforward": 48, "dropout": 0.0}
    return kind(**sizes | {"batch_first": True} | options)


STACKS = {
    "encoder-layer": lambda: layer(nn.TransformerEncoderLayer),
    "encoder": lambda: nn.TransformerEncoder(layer(nn.TransformerEncoderLayer), 2),
    "encoder-gelu": lambda: nn.TransformerEncoder(
        layer(nn.TransformerEncoderLayer, activation="gelu", norm_first=True),
        2,
        norm=nn.LayerNorm(32),
        enable_nested_tensor=False,
    ),
    "decoder": lambda: nn.TransformerDecoder(layer(nn.TransformerDecoderLayer), 2),
    "transformer": lambda: layer(nn.Transformer, num_encoder_layers=1, num_decoder_layers=1),
    "batch-second": lambda: layer(
        nn.Transformer, num_encoder_layers=1, num_decoder_layers=1, batch_first=False
    ),
}


def run_stack(name, model, padded=None):
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(2, length, 32, generator=generator) for length in (6, 5))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    if name.startswith("encoder"):
        return model(x, src_key_padding_mask=padded)
    if name == "decoder":
        return model(y, x, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padded)
    if name == "batch-second":
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    options = {"src_key_padding_mask": padded, "memory_key_padding_mask": padded}
    return model(x, y, tgt_mask=causal, **options)


@pytest.fixture
def padded():
    padded = torch.zeros(2, 6, dtype=torch.bool)
    padded[1, 4:] = True
    return padded


@pytest.mark.parametrize("word", SOFTMAX)
@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_reproduced_with_gradients(name, word, padded):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # why an encoder will not use nested tensors
        model = stir(STACKS[name]())
    replaced = copy.deepcopy(model)
    replace_attention(replaced, SOFTMAX[word])
    assert_same(model, replaced, lambda x: run_stack(name, x))
    assert_same(model, replaced, lambda x: run_stack(name, x, padded))


@pytest.mark.parametrize("name", ["encoder-layer", "encoder", "transformer"])
def test_fused_functions_of_eval_mode_do_not_pass_by(name, padded):
    model = stir(STACKS[name]())
    seen = ~padded if name.startswith("encoder") else slice(None)  # nested tensors drop the rest
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        expected, plain = run_stack(name, model, padded)[seen], run_stack(name, model)
        replace_attention(model, SOFTMAX["exp"])
        close(run_stack(name, model, padded)[seen], expected, 1e-5)
        close(run_stack(name, model), plain, 1e-5)
        replace_attention(model, "relu")
        changed = run_stack(name, model)
        assert (changed - plain).abs().max() > 1e-3
        with torch.enable_grad():
            close(run_stack(name, model), changed, 1e-5)
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(run_stack(name, again), changed)
        restore_attention(model)
        assert torch.equal(run_stack(name, model, padded)[seen], expected)
        assert not any(type(x).__name__.startswith("Flashpoint") for x in model.modules())


def test_one_layer_of_an_encoder_alone():
    model = stir(STACKS["encoder"]())
    before = list(model.state_dict())
    report = replace_attention(model, "relu", layers="layers.1.*")
    assert report.left == {"layers.0.self_attn": "not chosen by layers"}
    assert list(model.state_dict()) == before
    x = torch.randn(2, 6, 32)
    first = model.layers[0](x)
    torch.testing.assert_close(model(x), model.layers[1](first))


def test_dropout_of_pytorchs_layers_is_refused_in_training():
    model = layer(nn.TransformerEncoderLayer, dropout=0.1)
    with pytest.raises(UnsupportedError, match=r"self_attn drops 0\.1 .*self_attn\.dropout = 0\."):
        replace_attention(model)
    model.self_attn.dropout = 0.0
    replace_attention(model)
    assert model(torch.randn(2, 3, 32)).requires_grad


def test_nested_tensors_are_refused():
    module = make()
    replace_attention(module)
    x = torch.nested.nested_tensor([torch.randn(3, 32), torch.randn(2, 32)], layout=torch.jagged)
    with pytest.raises(UnsupportedError, match=r"takes no nested tensors"):
        module(x, x, x)


@pytest.mark.parametrize("word", SOFTMAX)
def test_vit_of_torchvision_is_reproduced(torchvision, word):
    from torchvision.models.vision_transformer import VisionTransformer

    model = stir(VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=5))
    replaced = copy.deepcopy(model)
    assert len(replace_attention(replaced, SOFTMAX[word]).replaced) == 2
    assert_same(model, replaced, lambda x: x(torch.ones(2, 3, 32, 32).cumsum(-1) / 32))


@pytest.mark.slow
def test_features_are_extracted_by_fx_as_before(torchvision):
    """torch.fx looks into no module of torch.nn, so neither into one that is replaced."""
    from torchvision.models.feature_extraction import create_feature_extractor
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(32, 8, 2, 4, 48, 96).eval()
    replace_attention(model, "relu")
    image, seen = torch.randn(2, 3, 32, 32), []
    layer = "encoder.layers.encoder_layer_0"
    hook = model.get_submodule(layer).register_forward_hook(lambda *x: seen.append(x[-1]))
    model(image)
    hook.remove()
    features = create_feature_extractor(model, [layer])
    torch.testing.assert_close(features(image)[layer], seen[0])


def test_encoder_is_compiled_whole_and_exported():
    model = stir(STACKS["encoder"]())
    replace_attention(model, "relu")
    x = torch.randn(2, 6, 32)
    with torch.no_grad():
        expected = model(x)
        close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected, 1e-5)
        close(torch.export.export(model, (x,)).module()(x), expected, 1e-5)
