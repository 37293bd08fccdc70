"""The layer in the place of timm's Attention, and drop path beside timm's."""

import pytest
import torch
from torch import nn

from flashpoint import InputError, UnsupportedError, attention
from flashpoint.layers import Attention, DropPath
from flashpoint.layers.spec import AttentionSpec

E, H, L = 32, 4, 9
SPECS = {
    "relu": AttentionSpec(),
    "relu4/sum": AttentionSpec.parse("relu4/sum"),
    "sigmoid": AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length"),
    "learned": AttentionSpec(alpha="learned", alpha_start=0.5, bias="learned", bias_start=0.2),
    "softmax": AttentionSpec(activation="softmax"),
}


def make_masks():
    """Masks as timm and SDPA have them, by name; none leaves a query blind."""
    generator = torch.Generator().manual_seed(5)
    seen = (torch.rand(2, 1, L, L, generator=generator) < 0.6) | torch.eye(L, dtype=torch.bool)
    added = torch.randn(H, L, L, generator=generator)
    return {
        "none": None,
        "bool": seen,
        "added": added,
        "hidden": torch.zeros(2, 1, L, L).masked_fill(~seen, -torch.inf),
        "both": added.masked_fill(~seen, -torch.inf),
        "keys": torch.zeros(1, L).index_fill(1, torch.tensor([2, 5]), -torch.inf),
    }


MASKS = make_masks()


def make_x():
    return torch.randn(2, L, E, generator=torch.Generator().manual_seed(2))


SETTINGS = {
    "plain": {"qkv_bias": True},
    "no bias": {"qkv_bias": False, "proj_bias": False},
    "norms": {"qkv_bias": True, "qk_norm": True, "scale_norm": True, "norm_layer": nn.LayerNorm},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_softmax_is_timms_layer_with_its_weights_and_masks(timm, settings, mask):
    from timm.layers.attention import Attention as Theirs

    torch.manual_seed(0)
    theirs = Theirs(E, H, **settings)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = Attention(E, H, "softmax", **settings)
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    x = make_x()
    torch.testing.assert_close(ours(x, attn_mask=mask), theirs(x, attn_mask=mask))
    if mask is None:
        torch.testing.assert_close(ours(x, is_causal=True), theirs(x, is_causal=True))


@pytest.mark.parametrize("mask", MASKS, ids=MASKS)
@pytest.mark.parametrize("word", SPECS)
def test_added_masks_are_bias_and_mask_of_the_operator(word, mask):
    torch.manual_seed(0)
    layer, x = Attention(E, H, SPECS[word], num_kv_heads=2), make_x()
    given = MASKS[mask]
    hidden = None if given is None else ~given if mask == "bool" else given == -torch.inf
    added = None if mask in ("none", "bool") else given.masked_fill(hidden, 0)
    q, k, v = layer.project(x)
    seen = None if hidden is None else ~hidden
    weights = layer.weights(q, k, attn_mask=given)
    expected = weights @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(layer.mix(q, k, v, seen, added=added), expected)
    expected = layer.proj(expected.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, attn_mask=given), expected)
    if word == "relu" and added is not None:
        o = attention(q, k, v, bias=added, mask=seen)
        torch.testing.assert_close(o, layer.mix(q, k, v, seen, added=added))


def test_added_mask_has_a_gradient():
    layer, x = Attention(E, H, "relu", dtype=torch.float64), make_x().double()
    added = MASKS["added"].double().requires_grad_()
    layer(x, attn_mask=added).square().sum().backward()
    assert added.grad.abs().sum() > 0
    assert torch.autograd.gradcheck(lambda a: layer(x, attn_mask=a), added, fast_mode=True)


def test_hidden_keys_are_not_counted_and_large_numbers_are():
    layer, x = Attention(E, H, "relu"), make_x()
    hidden = torch.zeros(L).index_fill(0, torch.arange(6, L), -torch.inf)
    lengths = torch.tensor([6, 6])
    torch.testing.assert_close(layer(x, attn_mask=hidden), layer(x, key_lengths=lengths))
    low = hidden.clamp(min=-1e9)
    q, k, v = layer.project(x)
    few = layer.mix(q, k, v, key_lengths=lengths)
    torch.testing.assert_close(layer.mix(q, k, v, added=low), few * 6 / L)


def test_timms_blocks_and_models_take_the_layer(timm):
    model = timm.create_model(
        "vit_tiny_patch16_224", depth=2, embed_dim=E, num_heads=H, img_size=32, num_classes=5
    ).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    for block in model.blocks:
        old = block.attn
        block.attn = Attention(E, H, "softmax")
        block.attn.load_state_dict(old.state_dict())
    torch.testing.assert_close(model(images), expected)
    assert model(images, attn_mask=torch.ones(5, 5, dtype=torch.bool)).shape == (2, 5)
    for block in model.blocks:
        block.attn = Attention(E, H, "relu")
    model.train()(images, is_causal=True).sum().backward()
    assert model.blocks[0].attn.qkv.weight.grad.abs().sum() > 0


def test_timm_builds_models_with_the_layer(timm):
    model = timm.create_model(
        "vit_tiny_patch16_224",
        depth=1,
        embed_dim=E,
        num_heads=H,
        img_size=32,
        qk_norm=True,
        proj_drop_rate=0.1,
        attn_layer=Attention,
    )
    attn = model.blocks[0].attn
    assert isinstance(attn, Attention)
    assert (attn.spec, attn.proj_drop.p) == (AttentionSpec(), 0.1)
    assert attn.q_norm.bias is not None
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 1000)


def test_output_is_dropped_in_training_only():
    layer, x = Attention(E, H, "relu", proj_drop=0.5), make_x()
    nn.init.ones_(layer.proj.bias)
    dropped = (layer(x) == 0).float().mean().item()
    assert 0.4 < dropped < 0.6
    assert not (layer.eval()(x) == 0).any()


def test_wrong_use_is_one_line():
    layer, x = Attention(E, H), make_x()
    mask = torch.ones(L, L, dtype=torch.bool)
    with pytest.raises(UnsupportedError, match=r"attn_drop=0\.1 drops attention weights"):
        Attention(E, H, attn_drop=0.1)
    with pytest.raises(InputError, match="mask and attn_mask are both given"):
        layer(x, mask=mask, attn_mask=mask)
    with pytest.raises(InputError, match=r"attn_mask must be bool or floating. Got int64"):
        layer(x, attn_mask=mask.long())
    with pytest.raises(InputError, match="added to the scores: a finite number, or -inf"):
        layer(x, attn_mask=torch.full((L, L), torch.nan))


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("shape", [(64, 5, 8), (64, 3)])
def test_drop_path_is_timms_number_for_number(timm, rate, shape):
    from timm.layers import DropPath as Theirs

    x = torch.randn(shape)
    drawn = []
    for kind in (DropPath, Theirs):
        torch.manual_seed(3)
        drawn.append(kind(rate)(x))
    assert torch.equal(*drawn)
    assert DropPath(rate).eval()(x) is x
