"""The parts computed in fp64 are parts of the whole, and a wrong result shows."""

from dataclasses import replace

import pytest
import torch

import flashpoint
from flashpoint.bench.accuracy import WRONG_BEYOND, case_error, exact_parts, relative_error
from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.providers import PROVIDERS, make_call, make_inputs

CASE = Case(shape=Shape(2, 3, 150, 16), dtype="fp32", mode="training")
OURS = PROVIDERS["flashpoint"]


def whole_in_fp64(case, inputs):
    q, k, v = (x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    o = flashpoint.attention(
        q, k, v, activation=case.activation, causal=case.causal, impl="reference"
    )
    return dict(
        zip(
            ("o", "dq", "dk", "dv"),
            (o, *torch.autograd.grad(o, (q, k, v), inputs.do.double())),
            strict=True,
        )
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 63, 150])
def test_parts_equal_the_whole(causal, length):
    case = replace(CASE, shape=Shape(2, 3, length, 16), causal=causal, activation="silu")
    inputs = make_inputs(case)
    whole = whole_in_fp64(case, inputs)
    parts = list(exact_parts(case, inputs))
    assert {part.name for part in parts} == {"o", "dq", "dk", "dv"}
    assert {(part.batch, part.head) for part in parts} == {(0, 0), (1, 2)}
    for part in parts:
        torch.testing.assert_close(
            part.exact, whole[part.name][part.batch, part.head, part.rows].detach()
        )


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("mode", ["forward", "recording", "training"])
def test_right_result_is_within_rounding(dtype, mode):
    case = replace(CASE, dtype=dtype, mode=mode)
    inputs = make_inputs(case)
    error = case_error(case, inputs, make_call(OURS, case, inputs)())
    assert 0 < error < WRONG_BEYOND[dtype]


def test_small_fault_in_one_gradient_shows():
    inputs = make_inputs(CASE)
    dq, dk, dv = make_call(OURS, CASE, inputs)()
    assert case_error(CASE, inputs, (dq, dk * 1.01, dv)) > WRONG_BEYOND["fp32"]


def test_not_a_number_is_infinitely_wrong():
    exact = torch.ones(3, dtype=torch.float64)
    assert relative_error(torch.tensor([1.0, float("nan"), 1.0]), exact) == float("inf")
    assert relative_error(torch.zeros(3), torch.zeros(3, dtype=torch.float64)) == 0
