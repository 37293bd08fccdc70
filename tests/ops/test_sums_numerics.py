"""Sums on every route through the kernels: results and gradients within the budget.

The cases are those of ``flashpoint doctor --check``, chosen here instead of drawn.
"""

import pytest
import torch
from implementations import FAST, HAS_GPU, HAS_TRITON, device_of, interpreted, on_gpu

from flashpoint import attention
from flashpoint.lab.selfcheck.case import Case, Scored
from flashpoint.lab.selfcheck.run import run_case

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
WORDS = {dtype: word for word, dtype in DTYPES.items()}
DIVISIONS = {
    "divided": {"normalize": "sum"},
    "divided and given": {"normalize": "sum", "return_sums": True},
    "divided, no floor": {"normalize": "sum", "floor": 0.0, "return_sums": True},
    "given": {"return_sums": True, "alpha": 0.5},
}
ACTIVATIONS = ("relu", "relu3", "relu4", "softplus", "exp")  # the laws have all of them


def sizes(B, Hq, Hkv, Lq, Lk, D, Dv):
    return {"B": B, "Hq": Hq, "Hkv": Hkv, "Lq": Lq, "Lk": Lk, "D": D, "Dv": Dv}


GROUPED = sizes(2, 2, 1, 17, 70, 24, 16)
SQUARE = sizes(2, 1, 1, 33, 33, 16, 16)
VARLEN = sizes(3, 2, 1, 17, 70, 16, 16) | {"sequences": ((17, 40), (0, 3), (7, 70))}
ROUTES = {
    "tiles": GROUPED,
    "causal": GROUPED | {"causal": True},
    "more queries than keys": sizes(1, 2, 1, 70, 17, 16, 16) | {"causal": True},
    "window": GROUPED | {"window": (9, 3)},
    "window, keys": GROUPED | {"window": (None, 2), "length": "keys"},
    "number": GROUPED | {"length": 7.0, "scale": 0.3},
    "lengths": GROUPED | {"key_lengths": (70, 11)},
    "lengths, causal": GROUPED | {"key_lengths": (64, 0), "causal": True},
    "bool mask": GROUPED | {"mask": Scored((2, 1, 17, 70), "bool")},
    "bool mask of keys": GROUPED | {"mask": Scored((1, 2, 1, 70), "bool"), "window": (30, 5)},
    "float mask": GROUPED | {"mask": Scored((2, 2, 17, 1), "fp32")},
    "bias": GROUPED | {"bias": Scored((1, 2, 17, 70), "fp32")},
    "bias and mask": GROUPED
    | {"bias": Scored((2, 1, 1, 70), "fp32"), "mask": Scored((1, 1, 17, 70), "fp32")},
    "bias number": GROUPED | {"bias": 1.5},
    "whole heads": SQUARE,
    "whole heads, bias": SQUARE | {"bias": 0.3},
    "decode": sizes(1, 2, 1, 1, 600, 16, 16),
    "decode, lengths": sizes(2, 1, 1, 3, 520, 16, 8) | {"key_lengths": (517, 0)},
    "decode, bias": sizes(1, 2, 1, 2, 512, 16, 16) | {"bias": Scored((1, 1, 1, 512), "fp32")},
    "varlen": VARLEN | {"function": "varlen"},
    "varlen, causal": VARLEN | {"function": "varlen", "causal": True},
    "varlen, bias": VARLEN | {"function": "varlen", "bias": Scored((3, 1, 17, 70), "fp32")},
    "packed": SQUARE | {"function": "qkvpacked", "causal": True},
    "packed, norms": SQUARE
    | {"function": "qkvpacked", "norms": ("layer", "rms"), "gain_dtype": "fp32"},
    "packed, norms and mask": SQUARE
    | {"function": "qkvpacked", "norms": (None, "rms"), "mask": Scored((2, 1, 33, 33), "bool")},
}


def assert_exact(impl, dtype, **fields):
    usual = {"seed": 0, "index": 1, "function": "attention"}
    case = Case(impl=impl, dtype=WORDS[dtype], **usual | fields)
    outcome = run_case(case, device_of(impl))
    assert not outcome.is_refused, outcome.detail
    assert not outcome.is_miss, f"{outcome.line}: {outcome.detail}"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda activation: activation in ("relu", "relu4", "softplus"))
@on_gpu(lambda dtype, activation: dtype == torch.bfloat16 and activation == "relu4")
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_sums_are_exact_on_every_route(impl, route, division, activation, dtype):
    assert_exact(impl, dtype, **route, **division, activation=activation)


LARGE = ("tiles", "causal", "bias", "whole heads", "decode", "varlen", "packed")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("activation", ["relu2", "relu3", "relu4", "exp"])
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
@pytest.mark.parametrize("route", LARGE)
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda activation: activation in ("relu4", "exp"))
@on_gpu(lambda activation, division: activation == "relu4" and "floor" not in division)
@pytest.mark.pairwise
def test_scores_of_a_hundred_cost_no_digits(impl, route, division, activation, dtype):
    """relu4 of 100 is 1e8: weights that fp16 cannot hold, in results that it can."""
    fields = ROUTES[route] | division
    assert_exact(impl, dtype, **fields, activation=activation, values="hundred")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("impl", FAST)
def test_result_of_huge_weights_is_an_average(impl, dtype):
    """Scores of 100 and more in all places: within the values, and no Inf on the way."""
    if impl == "triton" and not HAS_GPU and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bf16 as raw bits")
    torch.manual_seed(0)
    q, k = (torch.full((1, 2, 40, 64), 5.0) + torch.rand(1, 2, 40, 64) / 8 for _ in range(2))
    v = torch.rand(1, 2, 40, 64)
    q, k, v = (x.to(device_of(impl), dtype).requires_grad_() for x in (q, k, v))
    o, sums = attention(q, k, v, activation="relu4", normalize="sum", return_sums=True, impl=impl)
    assert sums.min() > 1e9
    assert 0.2 < o.min() <= o.max() < 0.8
    grads = torch.autograd.grad(o.float().sum(), (q, k, v))
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[2].float().sum().item() == pytest.approx(o.numel(), rel=1e-3)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
@pytest.mark.parametrize("activation", ["relu4", "soft"])
@pytest.mark.parametrize("impl", [name for name in FAST if name != "cpu"])
def test_keys_behind_the_last_have_no_weight(impl, activation):
    """Tiles end behind the keys: h of their zeros, or of a bias alone, must not be summed."""
    for route in ("tiles", "bias number", "whole heads, bias"):
        given = {"normalize": "sum", "return_sums": True}
        assert_exact(impl, torch.float16, **ROUTES[route], **given, activation=activation)
