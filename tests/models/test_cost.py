"""Parameters and operations, beside what PyTorch counts and what others publish."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from flashpoint.models.cost import (
    attention_flops,
    forward_flops,
    num_parameters,
    num_tokens,
    translation_attention_flops,
    translation_flops,
)
from flashpoint.models.registry import model_config, text_model_config
from flashpoint.models.reluformer import ReLUFormer
from flashpoint.models.vit import ViT

SMALL = {"width": 32, "depth": 3, "num_heads": 2, "image_size": 24, "patch_size": 4}
VARIANTS = {
    "gap": {},
    "token": {"pool": "token", "pre_logits": True},
    "map": {"pool": "map", "mlp_dim": 72},
    "gate": {"gate": "silu", "channels": 1},
    "no head": {"num_classes": 0},
}


def on_meta(config):
    with torch.device("meta"):
        return ViT(config)


@pytest.mark.parametrize("attention", ["relu", "softmax"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_formula_is_what_pytorch_counts(attention, variant):
    config = model_config("vit", **SMALL | variant, attention=attention)
    images = torch.randn(1, config.channels, 24, 24)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        ViT(config)(images)
    assert forward_flops(config) == counter.get_total_flops()


def test_attentions_part_grows_with_the_square_of_the_tokens():
    small, large = (model_config("vit_s16", image_size=size) for size in (224, 448))
    assert attention_flops(large) == 16 * attention_flops(small)
    assert attention_flops(small) == 4 * 12 * 196**2 * 384


@pytest.mark.parametrize(
    ("name", "timms"),
    [
        ("vit_ti16", 5_717_416),
        ("vit_s16", 22_050_664),
        ("vit_b32", 88_224_232),
        ("vit_b16", 86_567_656),
        ("vit_l16", 304_326_632),
    ],
)
def test_parameters_are_timms_less_one_position(name, timms):
    """timm's class token has a position beside itself: one vector more for the same function."""
    config = model_config(name, pool="token", qk_norm="none")
    assert num_parameters(on_meta(config)) == timms - config.width


@pytest.mark.parametrize(("name", "tokens"), [("vit_s32", 49), ("vit_s16", 196), ("vit_s8", 784)])
def test_tokens_are_the_papers(name, tokens):
    assert num_tokens(model_config(name)) == tokens
    assert num_tokens(model_config(name, pool="token")) == tokens + 1


@pytest.mark.parametrize(
    ("name", "gmacs"), [("vit_s16", 4.6), ("vit_b16", 17.6), ("vit_l16", 61.6)]
)
def test_operations_are_the_published_ones(name, gmacs):
    """As DeiT's and timm's tables give them, in multiply-adds for the class token's variant."""
    assert forward_flops(model_config(name, pool="token")) / 2e9 == pytest.approx(gmacs, rel=0.01)


@pytest.mark.parametrize("attention", ["relu", "softmax"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_formula_for_text_is_what_pytorch_counts(attention, tied, gate):
    changes = {"attention": attention, "tied_embeddings": tied, "gate": gate}
    config = text_model_config("reluformer_tiny", decoder_depth=3, **changes)
    source, target = torch.ones(1, 40, dtype=torch.int64), torch.ones(1, 30, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        ReLUFormer(config)(source, target)
    assert translation_flops(config, 40, 30) == counter.get_total_flops()


def test_attentions_part_of_a_document_grows_with_the_square_of_its_length():
    config = text_model_config("reluformer_base")
    short, long = (translation_attention_flops(config, n, n) for n in (256, 1024))
    assert long == 16 * short
    assert short == 4 * 512 * (6 + 6 + 6) * 256**2


def test_text_parameters_are_the_transformers():
    """Vaswani et al. give 65 million for the base size with 37,000 pieces."""
    config = text_model_config("reluformer_base", vocabulary_size=37_000, attention="softmax")
    with torch.device("meta"):
        count = num_parameters(ReLUFormer(config))
    assert count / 1e6 == pytest.approx(63.1, abs=0.1)  # theirs, with fewer norms and one bias
