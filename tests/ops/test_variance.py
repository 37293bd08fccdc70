"""What a layer sees at initialization: the moments of outputs for standard normal scores and v.

q holds scaled unit vectors, so the scores are entries of k: exactly standard normal, independent.
An estimate must lie within five of its standard errors, and that error must be small.
"""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import IMPLEMENTATIONS, device_of, interpreted

from flashpoint import attention

HEADS, D, DV = 2048, 8, 16
too_many_heads = interpreted(lambda: False)


def make_qkv(impl, num_keys, seed):
    generator = torch.Generator().manual_seed(seed)
    q = math.sqrt(D) * torch.eye(D).expand(1, HEADS, D, D)
    k = torch.randn(1, HEADS, num_keys, D, generator=generator)
    v = torch.randn(1, HEADS, num_keys, DV, generator=generator)
    return [t.to(device_of(impl)) for t in (q, k, v)]


def assert_mean(samples, expected, tolerance=0.04):
    """The mean over everything is as expected; heads are independent samples of it."""
    per_head = samples.double().mean((0, 2, 3))
    error = per_head.std().item() / math.sqrt(HEADS)
    assert 5 * error < tolerance * expected, f"{error:.2e} is too vague for {expected:.2e}"
    assert abs(per_head.mean().item() - expected) < 5 * error


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("relu", 1 / math.sqrt(2 * math.pi)),  # 0.3989
        ("relu2", 1 / 2),
        ("sigmoid", 1 / 2),
        ("gelu", 1 / (2 * math.sqrt(math.pi))),  # by Stein's lemma E s cdf(s) = E pdf(s)
    ],
)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@too_many_heads
def test_mean_weight_at_initialization(impl, activation, expected):
    q, k, v = make_qkv(impl, 256, seed=1)
    weight = attention(q, k, torch.ones_like(v[..., :1]), activation=activation, impl=impl)
    assert_mean(weight, expected)


# options, factor on the result, variance for L keys
SCALINGS = {
    "relu / L": ({"alpha": 1.0}, 1.0, lambda L: 1 / (2 * L)),
    "relu": ({"alpha": 0.0}, 1.0, lambda L: L / 2),
    "relu / sqrt(L / 2)": ({"alpha": 0.5}, math.sqrt(2), lambda L: 1.0),
    "relu / sqrt(L / 2), stated": ({"alpha": 0.5, "length": "half"}, 1.0, lambda L: 1.0),
    "relu2 / L": ({"alpha": 1.0, "activation": "relu2"}, 1.0, lambda L: 3 / (2 * L)),
    "identity / L": ({"alpha": 1.0, "activation": "identity"}, 1.0, lambda L: 1 / L),
}


@pytest.mark.parametrize("num_keys", [49, 196])
@pytest.mark.parametrize(("options", "factor", "variance"), SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@too_many_heads
def test_output_variance_at_initialization(impl, options, factor, variance, num_keys):
    if options.get("length") == "half":
        options = options | {"length": num_keys / 2}
    q, k, v = make_qkv(impl, num_keys, seed=2)
    o = factor * attention(q, k, v, **options, impl=impl)
    assert_mean(o.square(), variance(num_keys))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@too_many_heads
def test_output_variance_is_one_in_every_causal_row(impl):
    q, k, v = make_qkv(impl, D, seed=3)  # as many queries as keys: row i sees i + 1 of them
    o = math.sqrt(2) * attention(q, k, v, alpha=0.5, causal=True, impl=impl)
    for i in range(D):
        assert_mean(o[:, :, i : i + 1].square(), 1.0, tolerance=0.5)


def test_softmax_has_five_times_the_variance_of_relu():
    num_keys = 1024
    q, k, v = make_qkv("reference", num_keys, seed=4)
    variances = {
        name: attend(q, k, v).double().var().item() * num_keys
        for name, attend in {
            "softmax": F.scaled_dot_product_attention,
            "relu": partial(attention, impl="reference"),
        }.items()
    }
    assert variances["relu"] == pytest.approx(1 / 2, rel=0.02)
    assert variances["softmax"] == pytest.approx(math.e, rel=0.03)
