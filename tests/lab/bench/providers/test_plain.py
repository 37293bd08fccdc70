"""Plain PyTorch is the same function, for every activation."""

import re
from dataclasses import replace

import pytest
import torch

import flashpoint
from flashpoint.lab.bench.calls import make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.ops.activation import BUILTIN

CASE = Case(shape=Shape(2, 4, 40, 16, kv_heads=2), dtype="fp32", mode="forward")
LONG = replace(CASE, shape=Shape(1, 8, 16384, 64))


@pytest.mark.parametrize("queries", [None, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", [*BUILTIN, "relu4/sum", "exp/sum"])
def test_plain_computes_what_flashpoint_computes(activation, causal, queries):
    shape = replace(CASE.shape, queries=queries)
    case = replace(CASE, activation=activation, causal=causal, shape=shape)
    inputs = make_inputs(case)
    o = PROVIDERS["plain"].bind(case)(inputs.q, inputs.k, inputs.v)
    exact = flashpoint.attention(inputs.q, inputs.k, inputs.v, **case.options, impl="reference")
    torch.testing.assert_close(o, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_compiled_gives_the_same_gradients_every_time():
    case = replace(CASE, causal=True, activation="relu2", mode="backward")
    inputs = make_inputs(case)
    plain, compiled = (
        make_call(PROVIDERS[name], case, inputs) for name in ("plain", "plain_compiled")
    )
    for _ in range(2):
        for got, expected in zip(compiled(), plain(), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "plain_compiled"])
def test_plain_is_left_out_where_its_matrix_is_too_large(name):
    assert PROVIDERS[name].refusal(CASE) is None
    assert re.search(r"8\.6 GB.* 2\.1 GB", PROVIDERS[name].refusal(LONG))
    assert PROVIDERS[name].refusal(replace(LONG, device="cuda")) is None


def test_one_case_is_compiled_once():
    assert PROVIDERS["plain_compiled"].bind(CASE) is PROVIDERS["plain_compiled"].bind(CASE)
