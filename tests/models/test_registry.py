"""Models by name."""

import pytest

import flashpoint
from flashpoint.errors import InputError
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.registry import (
    create_model,
    image_model_config,
    is_model,
    is_text_model,
    list_models,
    model_config,
    text_model_config,
)
from flashpoint.models.reluformer import (
    RELU_ATTENTION,
    ReLUFormer,
    ReLUFormerConfig,
    text_attention,
)
from flashpoint.models.vit import ViT, ViTConfig

TINY = {"width": 32, "depth": 1, "num_heads": 2, "image_size": 32}


IMAGES = [name for name in list_models() if name.startswith("vit")]
TEXT = ["reluformer_tiny", "reluformer_iwslt", "reluformer_base"]


def test_names_are_of_images_or_of_text():
    assert list_models() == IMAGES + TEXT
    assert [is_text_model(name) for name in list_models()] == [False] * len(IMAGES) + [True] * 3


@pytest.mark.parametrize("name", IMAGES)
def test_every_listed_name_is_a_model(name):
    assert is_model(name)
    config = model_config(name)
    assert config.width // config.num_heads == 64
    assert config.mlp_dim == 4 * config.width
    assert config == image_model_config(name)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("reluformer_tiny", (64, 2, 2, 4, 128)),
        ("reluformer_iwslt", (512, 6, 6, 4, 1024)),
        ("reluformer_base", (512, 6, 6, 8, 2048)),
    ],
)
def test_text_model_has_the_papers_sizes_and_attention(name, sizes):
    assert is_model(name)
    c = text_model_config(name)
    assert (c.width, c.encoder_depth, c.decoder_depth, c.num_heads, c.mlp_dim) == sizes
    assert c == model_config(name)
    assert c.attention == AttentionSpec(alpha=0.5, gain="learned", gain_start=2**0.5)
    assert c.pre_norm
    assert c.tied_embeddings


@pytest.mark.parametrize("attention", ["relu", "softmax", "relu4/sum"])
def test_twins_of_text_differ_in_one_word(attention):
    model = create_model("reluformer_tiny", attention=attention, vocabulary_size=30)
    assert isinstance(model, ReLUFormer)
    assert model.embed.weight.shape == (30, 64)
    expected = RELU_ATTENTION if attention == "relu" else AttentionSpec.parse(attention)
    assert model.config.attention == expected


def test_only_the_word_relu_is_reluformers_own():
    assert text_attention({"activation": "relu"}) == AttentionSpec()
    assert text_attention("relu2") == AttentionSpec(activation="relu2")
    assert text_attention(AttentionSpec()) == AttentionSpec()
    assert model_config("vit_s16", attention="relu").attention == AttentionSpec()


def test_reluformer_takes_any_size():
    sizes = {"width": 32, "encoder_depth": 1, "decoder_depth": 3, "num_heads": 2}
    config = model_config("reluformer", **sizes)
    assert (config.decoder_depth, config.mlp_dim) == (3, 128)
    assert not is_model("reluformer")


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
def test_attention_is_a_word_a_mapping_or_a_spec(attention):
    config = model_config("vit_s16", attention=attention)
    assert config.attention == AttentionSpec(activation="relu2")
    by_sum = model_config("vit_s16", attention="relu2/sum").attention
    assert by_sum == AttentionSpec(activation="relu2", normalize="sum")


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
        ("vit", TINY | {"width": "32"}, "width='32' must be a whole number from 1 to 65,536"),
        ("vit_s16", {"attention": "rellu"}, "Did you mean 'relu'"),
        ("vit_s16", {"image_size": 100}, "image_size=100 is not a multiple of patch_size=16"),
        (
            "reluformer_bas",
            {},
            "model 'reluformer_bas' is unknown. Did you mean 'reluformer_base'",
        ),
        ("reluformer", {"width": 32}, "Give encoder_depth, decoder_depth, num_heads"),
        ("reluformer_tiny", {"image_size": 32}, "reluformer_tiny has no setting 'image_size'"),
        ("reluformer_tiny", {"num_head": 2}, "Did you mean 'num_heads'"),
        ("reluformer_tiny", {"attention": "sofmax"}, "Did you mean 'softmax'"),
    ],
)
def test_wrong_name_or_setting_is_one_line(name, overrides, message):
    with pytest.raises(InputError) as error:
        create_model(name, **overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_model_of_the_other_kind_is_refused():
    with pytest.raises(InputError, match="'reluformer_tiny' is not a model of images"):
        image_model_config("reluformer_tiny")
    with pytest.raises(InputError, match="'vit_s16' is not a model of text"):
        text_model_config("vit_s16")


SIZES = {"width": 32, "num_heads": 2, "mlp_dim": 64}
CONFIGS = {
    "vit": (ViTConfig, {"depth": 1}),
    "reluformer": (ReLUFormerConfig, {"encoder_depth": 1, "decoder_depth": 1}),
}


@pytest.mark.parametrize(("config", "depths"), CONFIGS.values(), ids=CONFIGS)
def test_config_takes_a_word_or_fields_as_create_model_does(config, depths):
    for given in ("relu2", {"activation": "relu2"}, AttentionSpec(activation="relu2")):
        made = config(**SIZES, **depths, attention=given)
        assert made.attention == AttentionSpec(activation="relu2")
    own = RELU_ATTENTION if config is ReLUFormerConfig else AttentionSpec()
    assert config(**SIZES, **depths, attention="relu").attention == own
    with pytest.raises(InputError, match="Did you mean 'relu'"):
        config(**SIZES, **depths, attention="rellu")


def test_timms_words_are_ours():
    ours = model_config("vit_s16", image_size=32, channels=1, pool="gap", drop_path=0.1)
    words = {"in_chans": 1, "global_pool": "avg", "drop_path_rate": 0.1}
    for side in (32, (32, 32), [32, 32]):
        assert model_config("vit_s16", img_size=side, **words) == ours
    assert model_config("vit_s16", global_pool="map").pool == "map"
    for overrides, message in (
        ({"img_size": 32, "image_size": 32}, "img_size and image_size are one setting"),
        ({"img_size": (32, 64)}, r"img_size=\(32, 64\): images must be square"),
        ({"img_size": [[32], [64]]}, "images must be square"),
        ({"image_size": (32, 32)}, r"image_size=\(32, 32\) must be a whole number"),
        ({"global_pool": "max"}, "pool='max' is unknown"),
        ({"in_chans": 0}, "channels=0 must be a whole number from 1"),
    ):
        with pytest.raises(InputError, match=message):
            model_config("vit_s16", **overrides)
    with pytest.raises(InputError, match="reluformer_tiny has no setting 'img_size'"):
        model_config("reluformer_tiny", img_size=32)


def test_names_are_listed_by_a_pattern():
    assert flashpoint.list_models("reluformer_*") == TEXT
    assert flashpoint.list_models("vit_s?") == ["vit_s8"]
    assert flashpoint.list_models() == list_models()
    assert flashpoint.list_models("resnet*") == []
