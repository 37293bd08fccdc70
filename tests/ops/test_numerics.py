"""Every implementation against the fp64 reference: output and gradients, within plain's error."""

import pytest
import torch
from implementations import FAST, interpreted, on_gpu
from numerics import SHAPES, assert_exact, make_inputs

from flashpoint import Activation
from flashpoint.ops.activation import BUILTIN
from flashpoint.ops.cpu import tiling

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
every_fast = pytest.mark.parametrize("impl", FAST)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def make_options(shape):
    """Named sets of options, their tensors made to measure."""
    B, Hq, _, Lq, Lk, _, _ = shape
    generator = torch.Generator().manual_seed(7)

    def rand(*size):
        return torch.rand(size, generator=generator).bfloat16().double()

    return {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": (20, 3)},
        "left-window": {"window": (11, None), "length": "keys"},
        "causal-window": {"causal": True, "window": (9, 4), "alpha": 0.5},
        "lengths": {"key_lengths": torch.arange(B) * (Lk // 2)},
        "causal-lengths": {"key_lengths": torch.full((B,), Lk // 2 + 1), "causal": True},
        "root-lengths": {
            "key_lengths": Lk - 1 - torch.arange(B) * (Lk // 2),
            "causal": True,
            "alpha": 0.5,
        },
        "power-window": {"window": (20, None), "alpha": -0.3},
        "power-bias": {"bias": 2 * rand(Lk) - 1, "causal": True, "alpha": 1.7},
        "bias-number": {"bias": -0.75, "length": 40},
        "bias": {"bias": 2 * rand(Hq, Lq, Lk) - 1, "scale": 0.3},
        "bias-row": {"bias": 2 * rand(Lk) - 1, "causal": True},
        "bool-mask": {"mask": rand(B, 1, Lq, Lk) > 0.4},
        "bool-mask-heads": {"mask": rand(Hq, 1, Lk) > 0.4, "window": (30, 30)},
        "bool-mask-queries": {"mask": rand(B, 1, Lq, 1) > 0.4, "causal": True},
        "bool-mask-root": {"mask": rand(B, 1, 1, Lk) > 0.4, "causal": True, "alpha": 0.5},
        "float-mask": {"mask": rand(B, Hq, Lq, Lk), "causal": True},
        "float-mask-row": {"mask": rand(1, 1, 1, Lk), "alpha": -0.25},
        "everything": {
            "mask": rand(1, Hq, Lq, 1),
            "bias": rand(B, 1, 1, Lk),
            "window": (40, 2),
            "key_lengths": torch.full((B,), Lk - Lk // 4),
            "alpha": 0.75,
        },
    }


OPTIONS = tuple(make_options(SHAPES["ragged"]))
SOME_OPTIONS = ("causal-window", "bool-mask-heads", "everything")


@every_fast
@every_shape
@every_dtype
@pytest.mark.parametrize("activation", BUILTIN)
@interpreted(
    lambda shape, dtype, activation: (
        shape == SHAPES["more-queries"] or (activation == "relu" and dtype == torch.float32)
    )
)
@on_gpu(
    lambda shape, dtype, activation: (
        (dtype == torch.bfloat16 and (activation == "relu" or shape == SHAPES["cross"]))
        or (shape == SHAPES["more-queries"] and activation in ("relu", "relu2", "gelu"))
    )
)
@pytest.mark.pairwise
def test_activation_matches_reference(impl, shape, dtype, activation):
    assert_exact(impl, dtype, make_inputs(shape), activation=activation)


@every_fast
@every_shape
@every_dtype
@pytest.mark.parametrize("name", OPTIONS)
@interpreted(
    lambda shape, dtype: shape == SHAPES["ragged" if dtype == torch.float32 else "more-queries"]
)
@on_gpu(
    lambda shape, dtype, name: (
        (shape == SHAPES["ragged"] and dtype == torch.bfloat16)
        or (shape == SHAPES["grouped"] and dtype == torch.float16 and name in SOME_OPTIONS)
        or (shape == SHAPES["more-queries"] and dtype == torch.float32 and name in SOME_OPTIONS)
    )
)
@pytest.mark.pairwise
def test_option_matches_reference(impl, shape, dtype, name):
    assert_exact(impl, dtype, make_inputs(shape, seed=1), **make_options(shape)[name])


@every_fast
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@on_gpu(lambda activation: activation in ("relu2", "relu6"))
@pytest.mark.long_interpreted
def test_large_scores_match_reference(impl, activation, dtype):
    inputs = make_inputs(SHAPES["ragged"], seed=4)
    # scores of standard deviation 4, far beyond relu6's kink; fp16 ends at exp of 11
    inputs["q"] = inputs["q"] * (2 if activation == "exp" else 4)
    assert_exact(impl, dtype, inputs, activation=activation)


def test_kink_of_a_users_activation_matches_reference():
    inputs = make_inputs(SHAPES["ragged"], seed=5)
    clipped = Activation("clipped", torch.nn.functional.hardtanh)
    assert_exact("cpu", torch.bfloat16, inputs, activation=clipped)


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["all", "causal"])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_sums_over_many_tiles_lose_no_digits_in_bf16(activation, options, monkeypatch):
    """Values of mean 1: a sum that is kept in bf16 soon no longer feels what is added."""
    monkeypatch.setattr(tiling, "KEYS", 64)
    monkeypatch.setattr(tiling, "ROWS", 32)
    inputs = make_inputs((1, 2, 1, 512, 2048, 16, 16))  # 32 tiles of queries, 32 of keys
    inputs = {name: (1 + t / 4).bfloat16().double() for name, t in inputs.items()}
    assert_exact("cpu", torch.bfloat16, inputs, activation=activation, **options)


def test_saturated_sigmoid_keeps_its_slope_in_bf16():
    """Weights in bf16 are too coarse near 1 to take the slope w (1 - w) from them."""
    inputs = make_inputs((2, 2, 1, 6, 6, 192, 192))
    inputs |= {"q": inputs["q"].abs() / 2, "k": inputs["k"].abs()}  # scores of about 4
    assert_exact("cpu", torch.bfloat16, inputs, activation="sigmoid")
