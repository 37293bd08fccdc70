"""The parts computed in fp64 are parts of the whole, and a wrong result shows."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import flashpoint
from flashpoint.lab.bench.accuracy import error_bound, exact_parts, relative_error, result_error
from flashpoint.lab.bench.calls import make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.providers.registry import PROVIDERS

CASE = Case(shape=Shape(2, 3, 150, 16), dtype="fp32", mode="training")
OURS = PROVIDERS["flashpoint"]


SHAPES = {
    "one": Shape(2, 3, 1, 16),
    "short": Shape(2, 3, 63, 16),
    "long": Shape(2, 3, 150, 16),
    "grouped": Shape(2, 6, 150, 16, kv_heads=3),
    "decode": Shape(2, 6, 150, 16, kv_heads=3, queries=1),
    "chunk": Shape(2, 3, 150, 16, queries=70),
}


def error_of(case, inputs, result, function="pointwise"):
    return result_error(list(exact_parts(case, inputs, function)), result)


def whole_in_fp64(case, inputs, function):
    q, k, v = (x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    if function == "softmax":
        length, queries = case.shape.length, case.shape.num_queries
        seen = torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
        mask = seen if case.causal else None
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    else:
        o = flashpoint.attention(q, k, v, **case.options, impl="reference")
    return dict(
        zip(
            ("o", "dq", "dk", "dv"),
            (o, *torch.autograd.grad(o, (q, k, v), inputs.do.double())),
            strict=True,
        )
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("function", "activation"),
    [("pointwise", "silu"), ("pointwise", "relu4/sum"), ("softmax", "silu")],
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_parts_equal_the_whole(causal, function, activation, shape):
    case = replace(CASE, shape=shape, causal=causal, activation=activation)
    inputs = make_inputs(case)
    whole = whole_in_fp64(case, inputs, function)
    parts = list(exact_parts(case, inputs, function))
    names = {"o", "dq", "dk", "dv"} if function == "pointwise" else {"o", "dq"}
    assert {part.name for part in parts} == names
    assert {(part.batch, part.head) for part in parts if part.name[-1] in "kv"} <= {(0, 0), (1, 2)}
    for part in parts:
        torch.testing.assert_close(
            part.exact, whole[part.name][part.batch, part.head, part.rows].detach()
        )


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("mode", ["forward", "recording", "backward", "training"])
@pytest.mark.parametrize("activation", ["relu", "relu4/sum"])
def test_right_result_is_within_rounding(dtype, mode, activation):
    case = replace(CASE, dtype=dtype, mode=mode, activation=activation)
    inputs = make_inputs(case)
    error = error_of(case, inputs, make_call(OURS, case, inputs)())
    assert 0 < error < error_bound(case)


def test_small_fault_in_one_gradient_shows():
    inputs = make_inputs(CASE)
    dq, dk, dv = make_call(OURS, CASE, inputs)()
    assert error_of(CASE, inputs, (dq, dk * 1.01, dv)) > error_bound(CASE)


def test_softmax_is_measured_against_softmax():
    inputs = make_inputs(CASE)
    gradients = make_call(PROVIDERS["sdpa"], CASE, inputs)()
    assert 0 < error_of(CASE, inputs, gradients, "softmax") < error_bound(CASE)
    assert error_of(CASE, inputs, gradients, "pointwise") > 0.1


def test_not_a_number_is_infinitely_wrong():
    exact = torch.ones(3, dtype=torch.float64)
    assert relative_error(torch.tensor([1.0, float("nan"), 1.0]), exact) == float("inf")
    assert relative_error(torch.zeros(3), torch.zeros(3, dtype=torch.float64)) == 0
