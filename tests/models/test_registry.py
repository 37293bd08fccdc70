"""Models by name."""

import pytest

from flashpoint.errors import InputError
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.registry import create_model, is_model, list_models, model_config
from flashpoint.models.vit import ViT

TINY = {"width": 32, "depth": 1, "num_heads": 2, "image_size": 32}


@pytest.mark.parametrize("name", list_models())
def test_every_listed_name_is_a_model(name):
    assert is_model(name)
    config = model_config(name)
    assert config.width // config.num_heads == 64
    assert config.mlp_dim == 4 * config.width


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vit_ti16", (192, 12, 3, 768, 16)),
        ("vit_s32", (384, 12, 6, 1536, 32)),
        ("vit_b14", (768, 12, 12, 3072, 14)),
        ("vit_l7", (1024, 24, 16, 4096, 7)),
    ],
)
def test_name_gives_the_sizes(name, sizes):
    c = model_config(name)
    assert (c.width, c.depth, c.num_heads, c.mlp_dim, c.patch_size) == sizes


def test_overrides_reach_the_config():
    model = create_model("vit_ti16", depth=1, pool="token", num_classes=7, attention="softmax")
    assert isinstance(model, ViT)
    assert (model.config.depth, model.config.num_classes) == (1, 7)
    assert model.config.attention == AttentionSpec(activation="softmax")
    assert model.cls_token is not None


@pytest.mark.parametrize(
    "attention", ["relu2", {"activation": "relu2"}, AttentionSpec(activation="relu2")]
)
def test_attention_is_a_name_a_mapping_or_a_spec(attention):
    config = model_config("vit_s16", attention=attention)
    assert config.attention == AttentionSpec(activation="relu2")


def test_vit_takes_any_size():
    assert create_model("vit", **TINY, patch_size=4).config.mlp_dim == 128
    assert model_config("vit", **TINY, mlp_dim=40).mlp_dim == 40
    assert model_config("vit_s16", width=192, num_heads=3).mlp_dim == 768


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("vit_s", {}, "model 'vit_s' is unknown. Did you mean 'vit_s"),
        ("vit_m16", {}, "model 'vit_m16' is unknown. Did you mean"),
        ("vit_s016", {}, "model 'vit_s016' is unknown"),
        ("vit_s0", {}, "model 'vit_s0' is unknown"),
        ("resnet50", {}, "Known: vit_ti, vit_s, vit_b and vit_l with a patch size, as vit_s16"),
        (None, {}, "model None is unknown"),
        ("vit_s16", {"nun_classes": 3}, "no setting 'nun_classes'. Did you mean 'num_classes'"),
        ("vit_s16", {"patch_size": 8}, "vit_s16 has patches of 16, patch_size=8 was given"),
        ("vit", {"width": 32}, "Give depth, num_heads"),
        ("vit", TINY | {"width": "32"}, "width must be an integer >= 1. Got '32'"),
        ("vit_s16", {"attention": "rellu"}, "Did you mean 'relu'"),
        ("vit_s16", {"image_size": 100}, "image_size=100 is not a multiple of patch_size=16"),
    ],
)
def test_wrong_name_or_setting_is_one_line(name, overrides, message):
    with pytest.raises(InputError) as error:
        create_model(name, **overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
