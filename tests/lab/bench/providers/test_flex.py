"""FlexAttention's softmax and log trick give the right numbers; eager on the CPU."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from implementations import needs_gpu

import flashpoint
from flashpoint.lab.bench.calls import make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.providers.flex import bind_log, bind_softmax, log_weights
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.ops.activation import BUILTIN, find_activation

NOT_NEGATIVE = [name for name in BUILTIN if find_activation(name).is_nonnegative]
CASE = Case(shape=Shape(1, 4, 40, 16, kv_heads=2), dtype="fp32", mode="forward")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


@pytest.mark.parametrize("queries", [None, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", [*NOT_NEGATIVE, "relu4/sum"])
def test_log_trick_computes_what_flashpoint_computes(activation, causal, queries):
    shape = replace(CASE.shape, queries=queries)
    case = replace(CASE, activation=activation, causal=causal, shape=shape)
    inputs = make_inputs(case)
    inputs.q[:, :, 3] = 0  # a row whose relu weights are all zero
    exact = flashpoint.attention(inputs.q, inputs.k, inputs.v, **case.options, impl="reference")
    o = bind_log(case)(inputs.q, inputs.k, inputs.v)
    torch.testing.assert_close(o, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_is_softmax(causal):
    case = replace(CASE, causal=causal)
    inputs = make_inputs(case)
    exact = F.scaled_dot_product_attention(
        inputs.q, inputs.k, inputs.v, is_causal=causal, enable_gqa=True
    )
    torch.testing.assert_close(bind_softmax(case)(inputs.q, inputs.k, inputs.v), exact)


def test_logarithm_of_no_weight_has_no_gradient():
    scores = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    logs = log_weights(F.relu, scores)
    assert logs.tolist() == [float("-inf"), float("-inf"), pytest.approx(0.693147)]
    (gradient,) = torch.autograd.grad(logs[2] + logs.exp().sum() * 0, scores)
    assert gradient.tolist() == [0.0, 0.0, 0.5]


def test_what_flex_cannot_do_is_refused():
    flex, log = PROVIDERS["flex_softmax"], PROVIDERS["flex_log"]
    assert flex.refusal(CASE) is None
    assert "no backward" in flex.refusal(replace(CASE, mode="backward"))
    assert "no log-sum-exp" in log.refusal(CASE)
    refused = [n for n in BUILTIN if log.refusal(replace(CASE, activation=n, device="cuda"))]
    assert refused == ["gelu", "silu", "identity"]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")  # an older torch's kernels
@pytest.mark.parametrize("causal", [False, True])
def test_compiled_log_trick_has_the_right_gradients(causal):
    case = replace(CASE, shape=Shape(1, 2, 256, 64), device="cuda", causal=causal, mode="training")
    inputs = make_inputs(case)
    found = [make_call(PROVIDERS[name], case, inputs)() for name in ("flex_log", "plain")]
    for flex, plain in zip(*found, strict=True):
        torch.testing.assert_close(flex, plain, rtol=1e-2, atol=1e-3)
