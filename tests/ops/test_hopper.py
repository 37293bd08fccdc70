"""The kernels for Hopper, on one: ragged, strided, grouped, causal, every activation."""

import pytest
import torch
from implementations import HAS_TRITON, needs_gpu
from numerics import assert_exact, make_inputs, make_qkv

from flashpoint.ops.spec import BUILTIN, Terms

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.triton import hopper
from flashpoint.ops.triton.problem import Problem

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU"),
]
# B, Hq, Hkv, Lq, Lk, D, Dv
SHAPES = {
    "square": (1, 2, 2, 512, 512, 64, 64),
    "ragged": (2, 2, 2, 300, 517, 128, 128),
    "blind-rows": (1, 2, 1, 700, 260, 64, 64),
    "grouped": (1, 8, 2, 401, 1100, 64, 64),
    "padded-dims": (1, 2, 2, 333, 450, 72, 120),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def assert_served(shape, dtype, activation, causal):
    """The kernels for Hopper, not the portable ones, compute this."""
    q, k, v = make_qkv(shape, dtype).values()
    terms = Terms(activation, right=0 if causal else None)
    problem = Problem.dense(q, k, v, None, None, None, terms)
    do = q.new_ones(*q.shape[:3], v.shape[3])
    assert hopper.forward_kernels(problem)
    assert hopper.backward_kernels(problem, do)


@every_shape
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_relu_matches_reference(shape, causal, dtype):
    assert_served(shape, dtype, "relu", causal)
    assert_exact("triton", dtype, make_inputs(shape), causal=causal)


@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("options", [{"causal": True}, {"scale": 0.3, "bias": -0.5}], ids=str)
def test_activation_matches_reference(activation, options):
    shape = SHAPES["grouped"]
    assert_served(shape, torch.bfloat16, activation, "causal" in options)
    assert_exact("triton", torch.bfloat16, make_inputs(shape), activation=activation, **options)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"length": "keys", "causal": True}], ids=str)
def test_length_matches_reference(options):
    assert_exact("triton", torch.bfloat16, make_inputs(SHAPES["ragged"]), **options)
