"""The paper's lemma at initialization: sum_j relu(x_j) v_j has variance n / 2, the factor makes 1.

The lemma takes scores and values for independent. In a layer both come from the same tokens, and
the mean of relu(a . x) x over tokens x ~ N(0, 1) is a / 2: this part of the sum grows with n, not
with its root, and adds n^2 / (4 E) to the variance: n / (2 E) to one, with the factor.
"""

import pytest
import torch

from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.reluformer import RELU_ATTENTION, ReLUFormer, ReLUFormerConfig

LENGTHS = [64, 256, 1024, 4096, 8192]
WIDTH, HEADS, QUERIES = 128, 4, 32
UNSCALED = AttentionSpec(alpha=0.0)
every_length = pytest.mark.parametrize("keys", LENGTHS)


def layers_of(spec):
    """The attention of encoder, decoder and between them, as a model starts with."""
    sizes = {"vocabulary_size": 9, "width": WIDTH, "num_heads": HEADS, "mlp_dim": 8}
    config = ReLUFormerConfig(**sizes, encoder_depth=1, decoder_depth=1, attention=spec)
    model = ReLUFormer(config)
    return {"encoder": model.encoder[0].attn, "cross": model.decoder[0].cross}


def make_qkv(keys, queries=QUERIES, samples=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (queries, keys, keys)
    return [
        torch.randn(samples, HEADS, size, WIDTH // HEADS, generator=generator) for size in sizes
    ]


def variance(layer, q, k, v, **options):
    with torch.no_grad():
        return layer.mix(q, k, v, **options).double().square().mean().item()


@every_length
def test_with_the_factor_the_variance_stays_near_one(keys):
    for layer in layers_of(RELU_ATTENTION).values():
        assert variance(layer, *make_qkv(keys)) == pytest.approx(1.0, rel=0.1)


@every_length
def test_without_the_factor_it_grows_as_half_the_length(keys):
    for layer in layers_of(UNSCALED).values():
        assert variance(layer, *make_qkv(keys)) == pytest.approx(keys / 2, rel=0.1)


@pytest.mark.parametrize("keys", [64, 1024])
def test_padding_does_not_count(keys):
    layer, lengths = layers_of(RELU_ATTENTION)["cross"], torch.full((4,), keys // 2)
    assert variance(layer, *make_qkv(keys), key_lengths=lengths) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("keys", [1024, 4096])
@pytest.mark.parametrize(
    ("word", "expected"),
    [("relu/sum", 3.14), ("relu2/sum", 6.0), ("relu3/sum", 11.8), ("relu4/sum", 23.3)],
)
def test_average_of_values_starts_with_this_much_over_the_length(word, expected, keys):
    """E h^2 / (E h)^2 / n of scores of variance 1, as ``AttentionSpec`` says; softmax: e / n."""
    for layer in layers_of(AttentionSpec.parse(word)).values():
        found = keys * variance(layer, *make_qkv(keys))
        assert found == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("word", "least", "most"),
    [("softmax", 1.0, 1.1), ("relu4/sum", 1.0, 1.1), ("relu", 100.0, 10_000.0)],
)
def test_what_all_values_share_passes_an_average_as_it_is(word, least, most):
    """The plain sum of relu multiplies it by the root of n / pi; so gain starts at 1 for sums."""
    spec = RELU_ATTENTION if word == "relu" else AttentionSpec.parse(word)
    q, k, v = make_qkv(1024)
    found = variance(layers_of(spec)["cross"], q, k, v + 1.0)
    assert least < found < most


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_gamma_divides_the_deviation(gamma):
    layer = layers_of(AttentionSpec(alpha=0.5, gain=2**0.5 / gamma))["encoder"]
    assert variance(layer, *make_qkv(512)) == pytest.approx(gamma**-2, rel=0.1)


def test_every_row_of_a_causal_layer_has_variance_one():
    """n is what row i sees, so that early rows are neither larger nor smaller than late ones."""
    layer = Attention(WIDTH, HEADS, RELU_ATTENTION)
    with torch.no_grad():
        o = layer.mix(*make_qkv(256, queries=256, samples=300), causal=True)
    rows = o.square().mean((0, 1, 3))
    for part in rows.split([1, 3, 12, 48, 192]):
        assert part.mean().item() == pytest.approx(1.0, rel=0.1)


@every_length
@pytest.mark.parametrize("spec", [RELU_ATTENTION, UNSCALED], ids=["factor", "none"])
def test_tokens_that_give_both_keys_and_values_add_their_mean(spec, keys):
    found = []
    for seed in range(6):
        torch.manual_seed(seed)
        layer = layers_of(spec)["cross"]
        x, context = torch.randn(1, QUERIES, WIDTH), torch.randn(1, keys, WIDTH)
        found.append(variance(layer, *layer.project(x, context)))
    lemma = 1.0 if spec is RELU_ATTENTION else keys / 2
    expected = lemma * (1 + keys / (2 * WIDTH))
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.15)
