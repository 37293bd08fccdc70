"""timm's models and ours give the same logits."""

from functools import partial

import pytest
import torch
from torch import nn

from flashpoint.convert import load_timm_vit
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.models.cost import num_parameters

SMALL = {"img_size": 32, "patch_size": 8, "num_classes": 7}
SMALL |= {"embed_dim": 48, "depth": 3, "num_heads": 4, "mlp_ratio": 2.5}
GAP = {"global_pool": "avg", "class_token": False}
VARIANTS = {
    "class token": {},
    "token without position": {"no_embed_class": True},
    "gap": GAP,
    "gap, norm first": GAP | {"fc_norm": False},
    "map": {"global_pool": "map", "class_token": False},
    "token, fc_norm": {"fc_norm": True},
    "layer scale": {"init_values": 1e-2},
    "no qkv bias": {"qkv_bias": False},
    "gelu tanh": {"act_layer": "gelu_tanh"},
    "other eps": {"norm_layer": partial(nn.LayerNorm, eps=1e-3)},
    "no head": {"num_classes": 0},
    "gray": {"in_chans": 1},
}


def shake(model):
    """Every parameter of its own, large enough for logits to depend on it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def make(timm, **settings):
    torch.manual_seed(0)
    return shake(timm.models.VisionTransformer(**SMALL | settings))


def make_images(size=32, channels=3):
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_timms(timm, variant):
    theirs, images = make(timm, **variant), make_images(channels=variant.get("in_chans", 3))
    ours = load_timm_vit(theirs)
    assert_same(ours(images), theirs(images))
    assert_same(ours.features(images), theirs.forward_head(theirs.forward_features(images), True))


@pytest.mark.parametrize("size", [16, 24, 48, 64])
@pytest.mark.parametrize("variant", ["class token", "gap", "map"])
def test_logits_are_timms_at_another_resolution(timm, variant, size):
    theirs = make(timm, **VARIANTS[variant], dynamic_img_size=True)
    images = make_images(size)
    assert_same(load_timm_vit(theirs, image_size=size)(images), theirs(images))
    assert_same(load_timm_vit(theirs).with_image_size(size)(images), theirs(images))


def test_named_model_loads(timm):
    torch.manual_seed(0)
    theirs = shake(timm.create_model("vit_small_patch16_224")).double()
    ours = load_timm_vit(theirs)
    assert num_parameters(ours) == num_parameters(theirs) - 384  # the class token's position
    images = make_images(224).double()
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize("variant", ["class token", "gap", "gap, norm first", "map", "no head"])
def test_state_dict_is_enough(timm, variant):
    theirs = make(timm, **VARIANTS[variant])
    ours = load_timm_vit(theirs.state_dict(), num_heads=4)
    assert_same(ours(make_images()), theirs(make_images()))


def test_weights_are_copies(timm):
    theirs = make(timm)
    before = theirs(make_images())
    ours = load_timm_vit(theirs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert torch.equal(theirs(make_images()), before)


def test_dtype_is_kept(timm):
    assert load_timm_vit(make(timm).bfloat16()).head.weight.dtype == torch.bfloat16


def test_relu_model_takes_the_weights_and_keeps_learned_numbers_at_their_start(timm):
    theirs = make(timm)
    spec = {"activation": "relu", "gain": "learned", "gain_start": 2.0}
    ours = load_timm_vit(theirs, attention=spec)
    assert torch.equal(ours.blocks[1].attn.qkv.weight, theirs.blocks[1].attn.qkv.weight)
    assert [block.attn.gain.item() for block in ours.blocks] == [2.0] * 3
    assert not torch.allclose(ours(make_images()), theirs(make_images()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reg_tokens": 2}, "register tokens (reg_token)"),
        ({"global_pool": "avg"}, "a class token that its pooling does not read"),
        ({"global_pool": "avgmax"}, "pools by 'avgmax'; ours by token, avg, map"),
        ({"qk_norm": True}, "norms of q and k with biases (blocks.0.attn.q_norm.weight"),
        ({"pre_norm": True}, "a norm before the blocks (norm_pre.weight"),
        ({"scale_mlp_norm": True}, "a norm inside the MLP"),
        ({"scale_attn_norm": True}, "norm on the attention's output"),
        ({"proj_bias": False}, "lacks blocks.0.attn.proj.bias"),
        ({"act_layer": "quick_gelu"}, "has the activation"),
        ({"final_norm": False}, "lacks norm.weight, norm.bias"),
        ({"pos_embed": "none"}, "has no 'pos_embed'"),
        ({"img_size": (32, 64)}, "Only square patches on a square grid"),
    ],
)
def test_what_ours_has_not_is_refused_by_name(timm, settings, message):
    theirs = timm.models.VisionTransformer(**SMALL | settings)
    with pytest.raises(UnsupportedError) as error:
        load_timm_vit(theirs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_gated_mlps_are_refused(timm):
    for layer, message in (
        (timm.layers.SwiGLU, "a gated MLP (SwiGLU)"),
        (timm.layers.GluMlp, "blocks.0.mlp.fc2.weight has shape [48, 60]"),
    ):
        with pytest.raises(UnsupportedError) as error:
            load_timm_vit(timm.models.VisionTransformer(**SMALL, mlp_layer=layer))
        assert message in str(error.value)


def test_blocks_of_another_order_are_refused(timm):
    """Their parameters have the same names."""
    block = timm.models.vision_transformer.ResPostBlock
    with pytest.raises(UnsupportedError, match="has blocks of ResPostBlock; ours are Block"):
        load_timm_vit(timm.models.VisionTransformer(**SMALL, block_fn=block))


def test_other_models_are_refused(timm):
    with pytest.raises(UnsupportedError, match="ResNet is not a vision transformer of timm's"):
        load_timm_vit(timm.create_model("resnet18"))
    with pytest.raises(UnsupportedError, match="a distillation token"):
        load_timm_vit(timm.create_model("deit_tiny_distilled_patch16_224"))
    with pytest.raises(UnsupportedError, match=r"has no 'patch_embed.proj.weight'"):
        load_timm_vit({}, num_heads=4)


@pytest.mark.parametrize("shape", [(816,), (1, 0, 48)])
def test_odd_positions_of_a_dict_are_refused(timm, shape):
    weights = make(timm).state_dict() | {"pos_embed": torch.zeros(shape)}
    with pytest.raises(InputError, match=r"the timm model: pos_embed has shape .* \[1, N, E\]"):
        load_timm_vit(weights, num_heads=4)


def test_heads_are_asked_for_with_a_dict_only(timm):
    theirs = make(timm)
    with pytest.raises(InputError, match="Pass num_heads"):
        load_timm_vit(theirs.state_dict())
    with pytest.raises(InputError, match="num_heads=4 is for state dicts"):
        load_timm_vit(theirs, num_heads=4)
    with pytest.raises(UnsupportedError, match="may pool either way"):
        load_timm_vit(make(timm, fc_norm=True).state_dict(), num_heads=4)
