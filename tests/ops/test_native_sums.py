"""Long sums and divisions of the kernel in C++, where a result is one number of many."""

from functools import partial

import pytest
import torch
from native_kernel import needs_kernel
from results import evaluate

from flashpoint import attention
from flashpoint.lab.selfcheck.judge import Sample, Sums, share_of

pytestmark = needs_kernel


def shares_of(tensors, parts=None, **options):
    """How much of its budget each result takes; ``parts`` are those of ``Sample``."""
    ways = ((torch.float64, "reference"), (torch.float32, "reference"), (torch.float32, "cpu"))
    exact, plain, got = (
        evaluate(
            partial(attention, impl=impl, **options),
            **{name: x.to(dtype) for name, x in tensors.items()},
        )
        for dtype, impl in ways
    )
    sample = Sample(got, exact, plain, parts or {})
    return {name: share_of(name, [sample], Sums()).ratio for name in got}


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("samples", [1024, 4096])
@pytest.mark.parametrize("name", ["bias", "mask"])
def test_a_gradient_shared_by_many_samples_is_as_exact(samples, name):
    """As that of the bias of windows, which all of them share: its sums are long."""
    tensors = {n: draw(samples, 2, 17, 8, seed=i) for i, n in enumerate("qkv")}
    tensors["v"] = tensors["v"].abs()
    tensors[name] = draw(1, 2, 17, 17, seed=3).abs()
    shares = shares_of(tensors, activation="sigmoid")
    assert max(shares.values()) <= 1, shares


@pytest.mark.parametrize("normalize", ["length", "sum"])
def test_sums_of_many_weights_are_as_exact(normalize):
    """Weights of nearly one size, 65,536 a row."""
    q, k, v = draw(1, 1, 48, 16), draw(1, 1, 65536, 16, seed=1), draw(1, 1, 65536, 16).abs()
    options = {"scale": 1e-4, "activation": "softplus", "return_sums": True}
    shares = shares_of({"q": q, "k": k, "v": v}, normalize=normalize, **options)
    assert max(shares["o"], shares["sums"]) <= 1, shares


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("keys", [2, 8])
def test_rows_of_few_keys_are_divided_as_exactly(keys, width):
    """What a query's weights lose by the division nearly cancels there."""
    for seed in range(8):
        drawn = {
            n: draw(1, 3, m, d, seed=9 * seed + i)
            for i, (n, m, d) in enumerate((("q", 97, 32), ("k", keys, 32), ("v", keys, width)))
        }
        options = {"activation": "exp", "normalize": "sum", "window": (keys // 4, 0)}
        o, z = attention(**drawn, **options, return_sums=True, impl="reference")
        leaves = {n: drawn[n].clone().requires_grad_() for n in "qk"}
        z = attention(**leaves, v=drawn["v"], **options, return_sums=True, impl="reference")[1]
        generator = torch.Generator().manual_seed(0)
        do = torch.randn(o.shape, generator=generator, dtype=torch.float64)
        taken = (do * o).sum(-1) / z.detach().masked_fill(z == 0, 1)
        parts = torch.autograd.grad(z, list(leaves.values()), taken)
        shares = shares_of(drawn, dict(zip(("dq", "dk"), parts, strict=True)), **options)
        assert max(shares.values()) <= 1, (seed, shares)


def test_values_without_columns_leave_the_gradients_of_sums():
    attention(*[draw(1, 2, 64, 64).float().requires_grad_()] * 3).sum().backward()  # fills memory
    tensors = {"q": draw(1, 2, 9, 4), "k": draw(1, 2, 30, 4, seed=1), "v": draw(1, 2, 30, 0)}
    for normalize in ("length", "sum"):
        options = {"normalize": normalize, "return_sums": True, "activation": "softplus"}
        shares = shares_of(tensors, **options)
        assert max(shares.values()) <= 1, shares


@pytest.mark.parametrize("impl", ["cpu", "products"])
def test_small_weights_are_divided_without_a_floor(impl, monkeypatch):
    """Of sums below 3e-39 the reciprocal is infinite, the quotient is not."""
    if impl == "products":
        monkeypatch.setattr("flashpoint.ops.cpu.native.call.CLASSES", {})
    options = {"activation": "exp", "normalize": "sum", "floor": 0.0, "scale": 1.0}
    for exponent in (-95.0, -89.0, -40.0, 0.0):
        q, k = torch.ones(1, 2, 9, 1), torch.full((1, 2, 5, 1), exponent)
        v = torch.arange(1.0, 11.0).view(1, 2, 5, 1)
        o = attention(q, k, v, **options, impl="cpu")
        expected = attention(q, k, v, **options, impl="reference")
        torch.testing.assert_close(o, expected, rtol=1e-3 if exponent < -87 else 1e-6, atol=0)
