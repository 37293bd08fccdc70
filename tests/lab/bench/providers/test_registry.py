"""Every provider gives an output and gradients, or a reason."""

from dataclasses import replace

import pytest
import torch

import flashpoint
from flashpoint.lab.bench.calls import make_call, make_inputs, make_rotating_call
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.providers.registry import PROVIDERS, USUAL

CASE = Case(shape=Shape(2, 2, 40, 16), dtype="fp32", mode="forward")
EAGER = ("flashpoint", "sdpa", "sdpa_flash", "sdpa_math", "plain")


def test_all_are_there_in_order():
    assert list(PROVIDERS) == [
        *("flashpoint", "sdpa", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa_math"),
        *("fa4", "flex_softmax", "flex_log", "plain", "plain_compiled"),
    ]
    assert {name for names in USUAL.values() for name in names} <= PROVIDERS.keys()


@pytest.mark.parametrize("name", EAGER)
def test_forward_records_nothing_and_the_others_give_gradients(name):
    output = make_call(PROVIDERS[name], CASE, make_inputs(CASE))()
    assert output.shape == CASE.shape.q_sizes
    assert not output.requires_grad
    found = []
    for mode in ("backward", "training"):
        case = replace(CASE, mode=mode)
        call = make_call(PROVIDERS[name], case, make_inputs(case))
        call()
        found.append(call())
    assert [gradient.shape for gradient in found[0]] == [CASE.shape.q_sizes] * 3
    for alone, together in zip(*found, strict=True):
        torch.testing.assert_close(alone, together)


@pytest.mark.parametrize("name", EAGER)
def test_shared_key_heads_are_served(name):
    case = replace(CASE, shape=Shape(2, 4, 40, 16, kv_heads=2, queries=1), mode="backward")
    dq, dk, dv = make_call(PROVIDERS[name], case, make_inputs(case))()
    assert (dq.shape, dk.shape, dv.shape) == (
        case.shape.q_sizes,
        case.shape.kv_sizes,
        case.shape.kv_sizes,
    )


def test_options_reach_flashpoint():
    case = replace(CASE, activation="silu", causal=True)
    inputs = make_inputs(case)
    expected = flashpoint.attention(inputs.q, inputs.k, inputs.v, activation="silu", causal=True)
    torch.testing.assert_close(make_call(PROVIDERS["flashpoint"], case, inputs)(), expected)


def test_inputs_are_the_same_every_time():
    first, second, other = make_inputs(CASE), make_inputs(CASE), make_inputs(CASE, seed=1)
    torch.testing.assert_close(first.q, second.q, rtol=0, atol=0)
    assert not torch.equal(first.q, first.k)
    assert not torch.equal(first.q, other.q)


def test_rotating_call_goes_round_its_inputs():
    sets = [make_inputs(CASE, seed) for seed in range(2)]
    call = make_rotating_call(PROVIDERS["flashpoint"], CASE, sets)
    first, second, third = call(), call(), call()
    torch.testing.assert_close(first, make_call(PROVIDERS["flashpoint"], CASE, sets[0])())
    assert not torch.equal(first, second)
    torch.testing.assert_close(first, third)
