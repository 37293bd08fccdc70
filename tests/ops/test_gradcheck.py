"""Gradients against finite differences in fp64, for inputs, bias and mask."""

import pytest
import torch
from implementations import IN_PYTHON, device_of

from flashpoint import Activation, UnsupportedError, attention, attention_varlen
from flashpoint.ops.spec import BUILTIN

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

    assert torch.autograd.gradcheck(call, dense_leaves(impl))


@every_impl
@pytest.mark.parametrize("activation", BUILTIN)
def test_gradients_without_options_are_right(impl, activation):
    def call(q, k, v):
        return attention(q, k, v, activation=activation, impl=impl)

    assert torch.autograd.gradcheck(call, dense_leaves(impl)[:3])


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

    assert torch.autograd.gradcheck(call, (q, k, v, bias, mask))


@every_impl
@pytest.mark.parametrize("derivative", [None, lambda s: 1 - torch.tanh(s) ** 2])
def test_gradients_of_a_users_activation_are_right(impl, derivative):
    mine = Activation("tanh", torch.tanh, derivative)

    def call(q, k, v, bias, mask):
        return attention(q, k, v, activation=mine, bias=bias, mask=mask, window=(2, 1), impl=impl)

    assert torch.autograd.gradcheck(call, dense_leaves(impl))


@pytest.mark.parametrize("activation", BUILTIN)
def test_second_derivatives_of_the_reference_are_right(activation):
    def call(q, k, v, bias, mask):
        return attention(q, k, v, activation=activation, bias=bias, mask=mask, impl="reference")

    assert torch.autograd.gradgradcheck(call, dense_leaves("reference"))


def test_second_derivatives_of_packed_sequences_are_refused():
    q, ends = leaf(3, 2, 4, seed=0, impl="cpu"), torch.tensor([0, 3])
    o = attention_varlen(q, q, q, ends, ends, 3, 3, impl="cpu")
    (first,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="impl='reference'"):
        torch.autograd.grad(first.sum(), q)
