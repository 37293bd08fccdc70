"""Polynomials for 16-bit weights and slopes: near float64 at every score, NaN and infinity."""

import math

import pytest
import torch
import triton
import triton.language as tl
from implementations import HAS_GPU

from flashpoint.ops.activation import BUILTIN, find_activation
from flashpoint.ops.gpu import versions
from flashpoint.ops.gpu.activations import in_kernels
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.half_activations import short_softplus_of_log2
from flashpoint.ops.spec import Terms

DEVICE = "cuda" if HAS_GPU else "cpu"
NAMES = ("gelu", "softplus")
EXACT = {torch.float16: 1e-4, torch.bfloat16: 4e-4}
"""Of weights: a fifth of what rounding to fp16 costs, a tenth of what it costs to bf16."""
EXACT_SLOPE = {torch.float16: 1.2e-4, torch.bfloat16: 1e-3}
"""Of slopes, which are products of two polynomials."""
FAR_TAIL = {
    (torch.float16, "gelu"): (1e-14, 5e-14),
    (torch.bfloat16, "gelu"): (2e-7, 6e-7),
    (torch.float16, "softplus"): (1e-37, 1e-37),
    (torch.bfloat16, "softplus"): (1e-37, 1e-37),
}
"""Of weights and slopes, where they are taken for constant or a fast exponential for 0."""
NEAR_ZERO = {"gelu": 0.05, "softplus": 0.0}
"""What is added to slopes as the measure of their errors, where they change their sign."""
pytestmark = [pytest.mark.gpu] if HAS_GPU else []


@triton.jit
def weigh_kernel(s, out, H: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, H(tl.load(s + at)))


@triton.jit
def slope_kernel(s, out, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ones = tl.full([BLOCK], 1.0, tl.float32)
    tl.store(out + at, GRADIENT(tl.load(s + at), ones))


def apply(kernel, function, scores):
    block = 1024
    s = torch.zeros(-(-len(scores) // block) * block, device=DEVICE)
    s[: len(scores)] = scores
    out = torch.empty_like(s)
    kernel[(len(s) // block,)](s, out, function, BLOCK=block, **versions.launch_options())
    return out[: len(scores)].cpu().double()


def exact(name, scores):
    """h and h' in float64."""
    s = scores.double()
    density = torch.exp(-s * s / 2) / math.sqrt(2 * math.pi)
    slopes = {"gelu": torch.special.ndtr(s) + s * density, "softplus": torch.sigmoid(s)}
    return find_activation(name).forward(s), slopes[name]


def dense_scores():
    tails = torch.cat([torch.linspace(0, 20, 40001), torch.logspace(-6, 1.9, 4001)])
    return torch.cat([tails, -tails])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", EXACT, ids=["fp16", "bf16"])
def test_weights_and_slopes_are_near_float64(dtype, name):
    scores = dense_scores()
    h, gradient = in_kernels(name, rounded=dtype)
    small, small_slope = FAR_TAIL[dtype, name]
    weights, slopes = exact(name, scores)
    got = apply(weigh_kernel, h, scores)
    assert ((got - weights).abs() <= EXACT[dtype] * weights.abs() + small).all()
    got = apply(slope_kernel, gradient, scores)
    size = slopes.abs() + NEAR_ZERO[name] * (scores.abs() < 4)
    assert ((got - slopes).abs() <= EXACT_SLOPE[dtype] * size + small_slope).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", EXACT, ids=["fp16", "bf16"])
def test_limits_and_nan_are_kept(dtype, name):
    scores = torch.tensor([float("inf"), 1e30, -1e30, float("nan")])
    h, gradient = in_kernels(name, rounded=dtype)
    weights, slopes = apply(weigh_kernel, h, scores), apply(slope_kernel, gradient, scores)
    assert weights[:2].tolist() == pytest.approx([float("inf"), 1e30])
    assert slopes[:2].tolist() == pytest.approx([1.0, 1.0], rel=EXACT[dtype])
    assert weights[2].abs() < 10 * FAR_TAIL[dtype, name][0]
    assert slopes[2].abs() < 20 * FAR_TAIL[dtype, name][1]
    assert weights[3].isnan()
    assert slopes[3].isnan()


def test_softplus_in_units_of_log2_is_near_float64():
    t = dense_scores()
    weights = find_activation("softplus").forward(t.double() * math.log(2.0))
    got = apply(weigh_kernel, short_softplus_of_log2, t) * math.log(2.0)
    assert ((got - weights).abs() <= EXACT[torch.bfloat16] * weights.abs() + 1e-37).all()
    limits = torch.tensor([float("inf"), -1e30, float("nan")])  # -1e30 stands for what is hidden
    got = apply(weigh_kernel, short_softplus_of_log2, limits)
    assert got[:2].tolist() == [float("inf"), 0.0]
    assert got[2].isnan()


def test_what_is_not_rounded_keeps_full_functions():
    for name in BUILTIN:
        fp16, bf16, full = (
            in_kernels(name, rounded=dtype) for dtype in (torch.float16, torch.bfloat16, None)
        )
        assert (fp16 == full) == (bf16 == full) == (fp16 == bf16) == (name not in NAMES)


@pytest.mark.parametrize(
    ("rounded", "dtype", "scores", "terms"),
    [
        (torch.bfloat16, torch.bfloat16, None, Terms("gelu")),
        (None, torch.float32, None, Terms("gelu")),
        (None, torch.float16, torch.zeros(1, 1, 4, 4), Terms("gelu")),
        (None, torch.float16, None, Terms("softplus", normalize="sum")),
    ],
    ids=["plain", "fp32", "bias", "sums"],
)
def test_calls_whose_results_are_finer_than_16_bits_are_told(rounded, dtype, scores, terms):
    q = torch.zeros(1, 1, 4, 16, dtype=dtype)
    assert Call.dense(q, q, q, scores, None, None, terms).rounds_weights == rounded
