"""Gradients against finite differences in fp64, for inputs, bias and mask."""

import pytest
import torch
from implementations import IN_PYTHON, device_of

from flashpoint import (
    Activation,
    HeadNorm,
    UnsupportedError,
    attention,
    attention_qkvpacked,
    attention_varlen,
)
from flashpoint.ops.activation import BUILTIN

every_impl = pytest.mark.parametrize("impl", IN_PYTHON)  # finite differences want fp64


def leaf(*shape, seed, impl):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.to(device_of(impl)).requires_grad_()


def dense_leaves(impl):
    """q, k, v, bias, mask for 4 query heads over 2 key heads, 3 queries, 5 keys."""
    shapes = {
        "q": (2, 4, 3, 4),
        "k": (2, 2, 5, 4),
        "v": (2, 2, 5, 3),
        "bias": (4, 1, 5),
        "mask": (2, 1, 3, 5),
    }
    return [leaf(*shape, seed=seed, impl=impl) for seed, shape in enumerate(shapes.values())]


@every_impl
@pytest.mark.parametrize("activation", BUILTIN)
def test_gradients_of_every_tensor_are_right(impl, activation):
    def call(q, k, v, bias, mask):
        return attention(
            q, k, v, activation=activation, bias=bias, mask=mask, causal=True, alpha=0.5, impl=impl
        )

    assert torch.autograd.gradcheck(call, dense_leaves(impl), fast_mode=True)


@every_impl
@pytest.mark.parametrize("activation", BUILTIN)
def test_gradients_without_options_are_right(impl, activation):
    def call(q, k, v):
        return attention(q, k, v, activation=activation, impl=impl)

    assert torch.autograd.gradcheck(call, dense_leaves(impl)[:3], fast_mode=True)


@every_impl
@pytest.mark.parametrize("activation", BUILTIN)
def test_varlen_gradients_are_right(impl, activation):
    q, k, v = (leaf(7, 2, 4, seed=seed, impl=impl) for seed in range(3))
    bias, mask = leaf(3, 1, 4, 4, seed=4, impl=impl), leaf(1, 2, 4, 4, seed=5, impl=impl)
    ends_q = torch.tensor([0, 2, 6, 7], device=q.device)
    ends_k = torch.tensor([0, 3, 3, 7], device=q.device)

    def call(q, k, v, bias, mask):
        return attention_varlen(
            q, k, v, ends_q, ends_k, 4, 4, activation=activation, bias=bias, mask=mask, impl=impl
        )

    assert torch.autograd.gradcheck(call, (q, k, v, bias, mask), fast_mode=True)


@every_impl
@pytest.mark.parametrize("derivative", [None, lambda s: 1 - torch.tanh(s) ** 2])
def test_gradients_of_a_users_activation_are_right(impl, derivative):
    mine = Activation("tanh", torch.tanh, derivative)

    def call(q, k, v, bias, mask):
        return attention(q, k, v, activation=mine, bias=bias, mask=mask, window=(2, 1), impl=impl)

    assert torch.autograd.gradcheck(call, dense_leaves(impl), fast_mode=True)


@pytest.mark.parametrize("activation", BUILTIN)
def test_second_derivatives_of_the_reference_are_right(activation):
    def call(q, k, v, bias, mask):
        return attention(q, k, v, activation=activation, bias=bias, mask=mask, impl="reference")

    assert torch.autograd.gradgradcheck(call, dense_leaves("reference"), fast_mode=True)


DIVISIONS = [{"normalize": "sum"}, {"normalize": "sum", "floor": 0.0}, {"alpha": 0.5}]
every_division = pytest.mark.parametrize("division", DIVISIONS, ids=["floor", "no floor", "given"])


@every_impl
@every_division
@pytest.mark.parametrize("activation", ["relu", "relu4", "softplus", "exp"])
def test_gradients_of_result_and_sums_are_right(impl, activation, division):
    """Together, for every tensor; factors of a mask are of one sign where sums divide."""

    def call(q, k, v, bias, mask):
        options = {"bias": bias, "mask": mask.exp(), "causal": True} | division
        return attention(q, k, v, activation=activation, **options, return_sums=True, impl=impl)

    assert torch.autograd.gradcheck(call, dense_leaves(impl), fast_mode=True)


@every_impl
@every_division
def test_gradients_of_varlen_and_packed_sums_are_right(impl, division):
    q, k, v = (leaf(7, 2, 4, seed=seed, impl=impl) for seed in range(3))
    ends = torch.tensor([0, 2, 6, 7], device=q.device)
    options = {"activation": "softplus", "return_sums": True, "impl": impl} | division

    def varlen(q, k, v):
        return attention_varlen(q, k, v, ends, ends, 4, 4, **options)

    def packed(qkv, q_gain):
        return attention_qkvpacked(qkv, q_norm=HeadNorm("rms", q_gain), window=(1, 2), **options)

    assert torch.autograd.gradcheck(varlen, (q, k, v), fast_mode=True)
    qkv, gain = leaf(2, 4, 3, 2, 3, seed=0, impl=impl), leaf(3, seed=1, impl=impl)
    assert torch.autograd.gradcheck(packed, (qkv, gain), fast_mode=True)


@every_division
@pytest.mark.parametrize("activation", ["relu4", "softplus", "exp"])
def test_second_derivatives_of_result_and_sums_are_right(activation, division):
    def call(q, k, v, bias, mask):
        options = {"bias": bias, "mask": mask.exp(), "return_sums": True} | division
        return attention(q, k, v, activation=activation, **options, impl="reference")

    assert torch.autograd.gradgradcheck(call, dense_leaves("reference"), fast_mode=True)


def test_second_derivatives_of_packed_sequences_are_refused():
    q, ends = leaf(3, 2, 4, seed=0, impl="cpu"), torch.tensor([0, 3])
    o = attention_varlen(q, q, q, ends, ends, 3, 3, impl="cpu")
    (first,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="impl='reference'"):
        torch.autograd.grad(first.sum(), q)
