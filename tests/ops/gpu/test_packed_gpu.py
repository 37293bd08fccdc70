"""Packed q, k and v at sizes that only a GPU takes: lengths of vision models and many heads."""

import pytest
import torch
from implementations import needs_gpu
from packed_numerics import assert_exact, make_inputs, norms

from flashpoint import attention_qkvpacked

pytestmark = [pytest.mark.gpu, needs_gpu]
# B, L, H: the last warpgroup has all its rows, some, or none (300); programs take tiles of one
# head or of many
SIZES = [(2, 197, 3), (3, 256, 5), (2, 300, 3), (60, 196, 12), (9, 577, 20)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", [49, 64, 65, 130, 192, 197, 256, 257, 290, 577, 784, 1100])
def test_lengths_of_vision_are_exact(L, causal):
    """By the kernels for one tile and the general ones, last blocks in pieces or whole."""
    inputs = make_inputs(2, L, 3, 64)
    for kinds in (("layer", "rms"), (None, "layer"), ("rms", None)):
        for _ in range(2):  # the second is a replay
            assert_exact("triton", torch.bfloat16, inputs, kinds, causal=causal)


@pytest.mark.parametrize(
    ("L", "causal"), [(70, False), (130, False), (197, False), (197, True), (300, False)]
)
def test_many_heads_are_exact(L, causal):
    """A program goes over five or six, so that its places for them are used again and again."""
    inputs = make_inputs(60, L, 12, 64)
    for kinds in (("layer", "layer"), (None, "layer"), ("rms", None), (None, None)):
        assert_exact("triton", torch.bfloat16, inputs, kinds, causal=causal)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_made_in_one_launch_are_exact(dtype, size):
    for D, kinds, options in (
        (64, ("layer", "layer"), {}),
        (48, ("rms", "layer"), {"scale": 0.3, "bias": -0.5}),
    ):
        inputs = make_inputs(*size, D)
        for _ in range(2):  # the second is a replay
            assert_exact("triton", dtype, inputs, kinds, **options)


@pytest.mark.parametrize("activation", ["relu2", "sigmoid", "silu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_are_exact(dtype, activation):
    inputs = make_inputs(2, 197, 3, 48)
    options = {"activation": activation, "bias": -1.0, "scale": 0.3}
    assert_exact("triton", dtype, inputs, ("rms", "layer"), **options)


@pytest.mark.parametrize("L", [197, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_of_any_size_are_exact(dtype, L):
    """Their norm may be applied to the output."""
    inputs = make_inputs(2, L, 3, 64)
    sizes = 2.0 ** (torch.arange(L).double() % 17 - 6)
    inputs["qkv"][:, :, 0] *= sizes[:, None, None]
    inputs["qkv"][:, 5, 0] = 3.0  # no spread
    for kinds in (("layer", "layer"), ("rms", "rms")):
        assert_exact("triton", dtype, inputs, kinds)


@pytest.mark.parametrize("L", [197, 300])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_nan_in_a_long_query_stays_in_its_row(kind, L):
    qkv = make_inputs(2, L, 3, 64)["qkv"].to("cuda", torch.bfloat16)
    qkv[1, 190, 0, 2, 7] = float("nan")
    o = attention_qkvpacked(qkv, **norms((kind, kind)), impl="triton")
    hit = torch.zeros_like(o, dtype=torch.bool)
    hit[1, 190, 2] = True
    assert torch.equal(o.isnan(), hit)


@pytest.mark.parametrize("D", [48, 128])
def test_head_dims_are_exact(D):
    for dtype in (torch.bfloat16, torch.float16):
        assert_exact("triton", dtype, make_inputs(2, 200, 2, D), ("layer", "layer"))
