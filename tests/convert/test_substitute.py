import math

import pytest
import torch
import torch.nn.functional as F

from flashpoint import AttentionSpec, UnsupportedError
from flashpoint.convert.substitute import Substitute

EXP = AttentionSpec(activation="exp", normalize="sum", floor=0.0)


def inputs(dtype=torch.float32, num_keys=7):
    torch.manual_seed(0)
    sizes = ((2, 4, 5, 8), (2, 2, num_keys, 8), (2, 2, num_keys, 8))
    return [torch.randn(size, dtype=dtype) for size in sizes]


@pytest.mark.parametrize("spec", ["softmax", EXP], ids=["softmax", "exp"])
@pytest.mark.parametrize("mask", [None, "bool", "added", "causal"])
def test_softmax_words_give_pytorchs_attention(spec, mask):
    q, k, v = inputs()
    seen = torch.rand(2, 1, 5, 7) < 0.7
    seen[..., 0] = True
    added = torch.randn(4, 5, 7).masked_fill(~seen[:1, 0], -math.inf)
    masks = {None: None, "bool": seen, "added": added, "causal": None}
    options = {"attn_mask": masks[mask], "is_causal": mask == "causal", "scale": 0.3}
    expected = F.scaled_dot_product_attention(q, k, v, **options, enable_gqa=True)
    got = Substitute(spec, 4)(q, k, v, **options, enable_gqa=True)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("fields", [{"bias": "-log_length"}, {"alpha": "learned_per_head"}])
def test_counts_have_the_precision_of_q(fields):
    spec = AttentionSpec(activation="sigmoid", **{"alpha": 0.0} | fields)
    substitute = Substitute(spec, 4)
    q, k, v = inputs(torch.float64)
    if substitute.alpha is not None:
        substitute.double()
        torch.nn.init.uniform_(substitute.alpha)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    got = substitute(q, k, v, is_causal=True)
    n = torch.arange(1.0, 6.0, dtype=torch.float64).view(-1, 1)
    scores = 8**-0.5 * q @ k.mT
    scores = scores - n.log() if spec.bias == "-log_length" else scores
    expected = (scores.sigmoid().tril() @ v) * n ** -(
        0.0 if substitute.alpha is None else substitute.alpha.view(-1, 1, 1)
    )
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("number", [-math.inf, -1e9, torch.finfo(torch.float32).min, -1e4])
@pytest.mark.parametrize("bias", [0.0, "-log_length"])
def test_large_negative_numbers_hide_as_models_mean_it(number, bias):
    q, k, v = inputs()
    hidden = torch.arange(7) >= 4
    added = torch.linspace(-1, 1, 7).masked_fill(hidden, number).expand(5, 7)
    substitute = Substitute(AttentionSpec(activation="sigmoid", bias=bias), 4)
    expected = substitute(q, k[:, :, :4], v[:, :, :4], added[:, :4], enable_gqa=True)
    torch.testing.assert_close(substitute(q, k, v, added, enable_gqa=True), expected)


def test_learned_scale_multiplies_the_scores_of_its_head():
    q, k, v = inputs()
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    substitute = Substitute("relu", 4, learns_scale=True)
    torch.testing.assert_close(substitute(q, k, v), reference_relu(q, k, v))
    torch.nn.init.constant_(substitute.scale, 2.0)
    torch.testing.assert_close(substitute(q, k, v), reference_relu(2 * q, k, v))
    assert list(substitute.state_dict()) == ["scale"]


@pytest.mark.parametrize("given", [None, 0.3])
def test_the_scale_of_a_spec_takes_the_place_of_the_models(given):
    q, k, v = inputs()
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    substitute = Substitute(AttentionSpec(activation="silu", scale=0.7), 4)
    expected = F.silu(0.7 * q @ k.mT) @ v / k.shape[2]
    torch.testing.assert_close(substitute(q, k, v, scale=given), expected)


def reference_relu(q, k, v):
    return (8**-0.5 * q @ k.mT).relu() @ v / k.shape[2]


def test_dropout_is_refused_by_pointwise_and_taken_by_softmax():
    q, k, v = inputs()
    with pytest.raises(UnsupportedError, match=r"drops 0\.5 .*timm: attn_drop\.p, torch\.nn"):
        Substitute("relu", 4)(q, k, v, dropout_p=0.5, enable_gqa=True)
    assert Substitute("softmax", 4)(q, k, v, dropout_p=0.5, enable_gqa=True).shape == q.shape


def test_other_than_four_dims_is_refused():
    q, _, _ = inputs()
    with pytest.raises(UnsupportedError, match=r"query has shape \[4, 5, 8\]"):
        Substitute("relu", 4)(q[0], q[0], q[0])


def test_gradients_agree_with_finite_differences():
    spec = AttentionSpec(activation="relu", gain="learned_per_head", bias="learned")
    substitute = Substitute(spec, 4).double()
    q = torch.randn(2, 4, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: substitute(x, x, x), (q,))
