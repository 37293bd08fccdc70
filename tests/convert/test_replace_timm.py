import copy
import io
import pickle

import pytest
import torch
from convert.foreign import SOFTMAX, assert_same, close, stir

from flashpoint import (
    AttentionSpec,
    UnsupportedError,
    replace_attention,
    restore_attention,
)
from flashpoint.convert.timm_attention import KNOWN

SMALL = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2}
WINDOWS = {
    "img_size": 32,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (2, 2),
    "num_heads": (2, 2),
}
MODELS = {
    "vit": ("vit_tiny_patch16_224", SMALL),
    "vit-norms": ("vit_tiny_patch16_224", SMALL | {"qk_norm": True, "scale_attn_norm": True}),
    "deit": ("deit_tiny_distilled_patch16_224", SMALL),
    "deit3": ("deit3_small_patch16_224", SMALL),
    "dinov2": ("vit_small_patch14_reg4_dinov2", SMALL),
    "siglip": ("vit_base_patch16_siglip_224", SMALL),
    "clip": ("vit_base_patch32_clip_224", SMALL),
    "eva02": ("eva02_tiny_patch14_224", SMALL),
    "eva02-split": ("eva02_base_patch14_224", SMALL),
    "dinov3": ("vit_small_patch16_dinov3", SMALL),
    "rope": ("vit_pe_core_tiny_patch16_384", SMALL),
    "beit": ("beit_base_patch16_224", SMALL),
    "beit-shared": ("beit_base_patch16_224", SMALL | {"use_shared_rel_pos_bias": True}),
    "relpos": ("vit_relpos_small_patch16_224", SMALL),
    "relpos-shared": ("vit_srelpos_small_patch16_224", SMALL),
    "parallel": ("vit_base_patch16_xp_224", SMALL),
    "swin": ("swin_tiny_patch4_window7_224", WINDOWS),
}


def make(timm, name, **options):
    word, sizes = MODELS[name]
    return stir(timm.create_model(word, num_classes=5, **sizes | options))


def images(count=2):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "word"), [(n, w) for n in MODELS for w in SOFTMAX])
def test_softmax_reproduces_the_model_and_its_gradients(timm, name, word):
    model = make(timm, name)
    replaced = copy.deepcopy(model)
    report = replace_attention(replaced, SOFTMAX[word])
    assert {entry.kind for entry in report.replaced} <= KNOWN
    assert not report.left
    assert_same(model, replaced, lambda x: x(images()))


@pytest.mark.parametrize("name", MODELS)
def test_relu_changes_it_and_restoring_undoes_it(timm, name):
    model = make(timm, name)
    expected, keys = model(images()), list(model.state_dict())
    num_parameters = sum(p.numel() for p in model.parameters())
    report = replace_attention(model, "relu4/sum")
    assert list(model.state_dict()) == keys
    assert (report.num_parameters, report.num_new_parameters) == (num_parameters, 0)
    changed = model(images())
    assert (changed - expected).abs().max() > 1e-3 * expected.abs().max()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(images()), changed)
    assert restore_attention(model) == len(report.replaced)
    assert torch.equal(model(images()), expected)
    assert [type(x) for x in model.modules()] == [type(x) for x in make(timm, name).modules()]


def test_relu_is_computed_by_the_definition(timm):
    model = make(timm, "vit")
    attn = model.blocks[0].attn
    x = torch.randn(2, 9, 32)
    q, k, v = attn.qkv(x).view(2, 9, 3, 2, 16).permute(2, 0, 3, 1, 4)
    o = ((16**-0.5 * q @ k.mT).relu() @ v / 9).transpose(1, 2).flatten(2)
    replace_attention(model, "relu")
    torch.testing.assert_close(attn(x), attn.proj(o))


def test_shifted_windows_hide_keys_and_do_not_count_them(timm):
    model = make(timm, "swin")
    attn = model.layers[0].blocks[1].attn
    replace_attention(model, "relu")
    x, mask = torch.randn(4, 16, 16), torch.zeros(4, 16, 16)
    mask[1, :, 8:] = -100.0
    half = torch.randn(4, 16, 16)
    other = torch.where((mask[1, 0] < 0)[:, None], half, x)
    torch.testing.assert_close(attn(x, mask)[1, :8], attn(other, mask)[1, :8])
    q, k, v = attn.qkv(x[1]).view(16, 3, 2, 8).permute(1, 2, 0, 3)
    scores = (8**-0.5 * q @ k.mT + attn._get_rel_pos_bias()[0])[..., :8]
    o = (scores.relu() @ v[:, :8] / 8).transpose(0, 1).flatten(1)
    torch.testing.assert_close(attn(x, mask)[1], attn.proj(o))


def test_padding_of_mixed_sizes_does_not_count(timm):
    """NaFlex hides padded patches by the least number of the dtype."""
    sizes = {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8}
    model = stir(timm.create_model("naflexvit_base_patch16_gap", num_classes=5, **sizes))
    replace_attention(model, "relu")
    patches = torch.randn(1, 6, 192)
    places = torch.cartesian_prod(torch.arange(2), torch.arange(3))[None]
    valid = torch.ones(1, 6, dtype=torch.bool)
    expected = model(patches, patch_coord=places, patch_valid=valid)
    more = torch.randn(1, 2, 192)
    got = model(
        torch.cat([patches, more], 1),
        patch_coord=torch.cat([places, places[:, :2]], 1),
        patch_valid=torch.cat([valid, torch.zeros(1, 2, dtype=torch.bool)], 1),
    )
    close(got, expected, 1e-5)


def test_manual_attention_is_switched_to_the_served_way(timm):
    model = make(timm, "vit")
    for block in model.blocks:
        block.attn.fused_attn = False  # what TIMM_FUSED_ATTN=0 sets
    expected = model(images())
    replace_attention(model, SOFTMAX["exp"])
    close(model(images()), expected, 1e-5)
    with pytest.raises(UnsupportedError, match=r"^fused_attn=False asks .*restore_attention"):
        model.blocks[0].attn.fused_attn = False
    model.blocks[0].attn.fused_attn = True
    restore_attention(model)
    assert torch.equal(model(images()), expected)
    assert not model.blocks[0].attn.fused_attn


def test_causal_and_masked_calls_of_the_module(timm):
    model = make(timm, "vit")
    attn, x = model.blocks[0].attn, torch.randn(2, 9, 32)
    mask = torch.rand(2, 1, 9, 9) < 0.7
    mask[..., 0] = True
    expected = attn(x, is_causal=True), attn(x, attn_mask=mask)
    replace_attention(model, SOFTMAX["exp"])
    close(attn(x, is_causal=True), expected[0], 1e-5)
    close(attn(x, attn_mask=mask), expected[1], 1e-5)


def test_unknown_attention_of_timm_is_refused_before_any_change(timm):
    sizes = WINDOWS | {"depths": (1, 1)}
    model = timm.create_model("swinv2_tiny_window8_256", num_classes=5, **sizes)
    with pytest.raises(UnsupportedError, match=r"swin_transformer_v2\.WindowAttention is not kno"):
        replace_attention(model)
    block = timm.create_model("vit_base_patch32_plus_256", **SMALL).blocks[0].attn

    class OtherAttention(type(block)):
        def forward(self, x):
            return x

    block.__class__ = OtherAttention
    both = torch.nn.Sequential(make(timm, "vit").blocks, block)
    with pytest.raises(UnsupportedError, match=r"^1 cannot be .*OtherAttention is not known"):
        replace_attention(both)
    assert not any(hasattr(x, "substitute") for x in both.modules())
    report = replace_attention(both, layers="0.*")
    assert list(report.left) == ["1"]
    assert len(report.replaced) == 2


def test_differential_attention_is_refused(timm):
    from timm.layers.diff_attention import DiffAttention

    with pytest.raises(UnsupportedError, match=r"DiffAttention is not known here"):
        replace_attention(DiffAttention(32, 2))


def test_forward_of_an_instance_is_refused(timm):
    model = make(timm, "vit")
    model.blocks[1].attn.forward = lambda x, **_: x
    with pytest.raises(UnsupportedError, match=r"blocks\.1\.attn cannot .* a forward of its own"):
        replace_attention(model)


def test_dropout_of_weights_is_refused_in_training_alone(timm):
    model = make(timm, "vit", attn_drop_rate=0.25).train()
    with pytest.raises(UnsupportedError, match=r"blocks\.0\.attn drops 0\.25 .*attn_drop_rate=0"):
        replace_attention(model, "relu")
    assert not hasattr(model.blocks[0].attn, "substitute")
    replace_attention(model, "softmax")
    model(images())  # softmax has weights to drop
    report = replace_attention(model.eval(), "relu")
    assert "2 of them drop weights in training" in str(report)
    model(images())
    with pytest.raises(UnsupportedError, match=r"drops 0\.25"):
        model.train()(images())


def test_gradient_checkpointing_and_intermediates_go_on(timm):
    model = make(timm, "vit")
    replace_attention(model, "relu")
    plain = copy.deepcopy(model)
    model.set_grad_checkpointing()
    model.train(), plain.train()
    assert_same(plain, model, lambda x: x(images()))
    _, features = model.eval().forward_intermediates(images())
    assert len(features) == 2


def test_learned_numbers_train_and_are_saved(timm):
    model = make(timm, "vit")
    spec = AttentionSpec(activation="relu", gain="learned_per_head", gain_start=2.0)
    report = replace_attention(model, spec)
    assert report.num_new_parameters == 4
    assert "blocks.0.attn.substitute.gain" in model.state_dict()
    model(images()).sum().backward()
    assert model.blocks[1].attn.substitute.gain.grad.abs().min() > 0
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    assert torch.equal(loaded(images()), model(images()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_compiled_whole_and_exported(timm, name):
    model = make(timm, name)
    replace_attention(model, "relu4/sum")
    with torch.no_grad():
        expected = model(images())
        exported = torch.export.export(model, (images(),)).module()
        close(exported(images()), expected, 1e-5)
        close(torch.compile(model, fullgraph=True, backend="aot_eager")(images()), expected, 1e-5)
