"""Hugging Face's ViT and ours give the same logits."""

import re

import pytest
import torch

from flashpoint.convert import load_transformers_vit
from flashpoint.errors import UnsupportedError

SMALL = {"image_size": 32, "patch_size": 8, "hidden_size": 48, "intermediate_size": 120}
SMALL |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_labels": 7}
# Names of transformers 4, in which published weights are stored
OLD_NAMES = {
    r"layers\.(\d+)\.": r"encoder.layer.\1.",
    r"attention\.q_proj": "attention.attention.query",
    r"attention\.k_proj": "attention.attention.key",
    r"attention\.v_proj": "attention.attention.value",
    r"attention\.o_proj": "attention.output.dense",
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
}


def make(transformers, kind="ViTForImageClassification", options=None, **settings):
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL | settings)
    model = getattr(transformers, kind)(config, **options or {}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_images(size=32, channels=3):
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"qkv_bias": False},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"layer_norm_eps": 1e-2},
        {"num_channels": 1},
    ],
    ids=str,
)
def test_logits_are_hugging_faces(transformers, settings):
    theirs = make(transformers, **settings)
    images = make_images(channels=settings.get("num_channels", 3))
    assert_same(load_transformers_vit(theirs)(images), theirs(images).logits)


def test_default_start_is_matched_too(transformers):
    """Small weights, where the norms' eps of 1e-12 shows."""
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)).eval()
    images = make_images()
    assert_same(load_transformers_vit(theirs)(images), theirs(images).logits)


@pytest.mark.parametrize("size", [16, 24, 48, 64])
def test_logits_are_hugging_faces_at_another_resolution(transformers, size):
    theirs, images = make(transformers), make_images(size)
    logits = theirs(images, interpolate_pos_encoding=True).logits
    assert_same(load_transformers_vit(theirs, image_size=size)(images), logits)


@pytest.mark.parametrize("pooled", [True, False])
def test_features_are_the_pooler_or_the_class_token(transformers, pooled):
    theirs = make(transformers, "ViTModel", {"add_pooling_layer": pooled})
    ours = load_transformers_vit(theirs)
    outputs = theirs(make_images())
    expected = outputs.pooler_output if pooled else outputs.last_hidden_state[:, 0]
    assert (ours.config.num_classes, ours.config.pre_logits) == (0, pooled)
    assert_same(ours(make_images()), expected)


class OldModel(torch.nn.Module):
    """A model under the names of transformers 4."""

    def __init__(self, model):
        super().__init__()
        self.config, self.model = model.config, model

    def state_dict(self):
        def rename(name):
            name = name.replace("vit.encoder.layer", "vit.layers")
            for new, old in OLD_NAMES.items():
                name = re.sub(new, old, name)
            return name

        return {rename(name): weight for name, weight in self.model.state_dict().items()}


def test_names_of_version_4_are_known(transformers):
    theirs = make(transformers)
    old = OldModel(theirs)
    assert "vit.encoder.layer.0.attention.attention.query.weight" in old.state_dict()
    assert "vit.encoder.layer.0.output.dense.weight" in old.state_dict()
    assert_same(load_transformers_vit(old)(make_images()), theirs(make_images()).logits)


def test_relu_model_takes_the_weights(transformers):
    theirs = make(transformers)
    ours = load_transformers_vit(theirs, attention="relu")
    assert torch.equal(ours.head.weight, theirs.classifier.weight)
    assert ours.config.attention.activation == "relu"
    assert not torch.allclose(ours(make_images()), theirs(make_images()).logits)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("ViTForImageClassification", {"hidden_act": "relu"}, "has the activation 'relu'"),
        ("ViTModel", {"pooler_act": "sigmoid"}, "a pooler with 'sigmoid'; ours has tanh"),
        ("ViTModel", {"pooler_output_size": 20}, "pre_logits.weight has shape [20, 48]"),
        ("ViTForMaskedImageModeling", {"encoder_stride": 8}, "a mask token or decoder"),
        ("ViTForImageClassification", {"image_size": [32, 64]}, "on a square grid"),
    ],
)
def test_what_ours_has_not_is_refused_by_name(transformers, kind, settings, message):
    with pytest.raises(UnsupportedError) as error:
        load_transformers_vit(make(transformers, kind, **settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_other_models_are_refused():
    with pytest.raises(
        UnsupportedError, match=r"Linear is of the type None; .* 'vit' is expected"
    ):
        load_transformers_vit(torch.nn.Linear(2, 2))
