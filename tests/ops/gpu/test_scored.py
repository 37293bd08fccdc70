"""Gradients of a bias or a mask that are sums over whole axes: there the kernel works in parts."""

import math

import pytest
import torch
from implementations import HAS_TRITON, TRITON, device_of
from numerics import assert_exact, assert_within_budget, make_inputs, run

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import replay
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.portable import backward_scored
from flashpoint.ops.spec import Terms

BROADCAST = {
    "number": (1, 1, 1, 1),
    "per-head": (1, 2, 1, 1),
    "per-sample": (2, 1, 1, 1),
    "per-query": (1, 1, 150, 1),
    "per-key": (1, 1, 1, 70),
    "per-head-and-key": (1, 2, 1, 70),
    "per-pair": (1, 1, 150, 70),
}


@pytest.mark.parametrize("samples", [2, 5, 9])
@pytest.mark.parametrize("impl", TRITON)
def test_samples_that_share_a_bias_are_summed_in_shares(impl, samples, monkeypatch):
    """Of four, which few samples do not fill, the last one has fewer; and so have sequences."""
    monkeypatch.setattr(backward_scored, "count_shares", lambda *_: min(4, samples))
    replay._recordings.clear()
    options = {"bias": torch.rand(1, 2, 20, 20), "activation": "silu", "causal": True}
    assert_exact(impl, torch.float32, make_inputs((samples, 2, 1, 20, 20, 16, 16)), **options)
    replay._recordings.clear()


def test_shares_of_samples_leave_none_empty_and_fill_the_gpu():
    for samples in (1, 2, 7, 64, 1000):
        for programs in (1, 6, 100, 10_000):
            tensors = [torch.empty(samples, 1, 1, 16)] * 3
            call = Call.dense(*tensors, None, None, None, Terms())
            shares = backward_scored.count_shares(call, programs)
            assert 1 <= shares <= samples
            share = math.ceil(samples / shares)
            assert (shares - 1) * share < samples <= shares * share
            assert shares == 1 or programs * shares <= backward_scored.PROGRAMS * 132
    assert backward_scored.count_shares(call, 6) == 84  # 1,000 samples: 12 for each of 84


@pytest.mark.parametrize("sizes", BROADCAST.values(), ids=BROADCAST)
@pytest.mark.parametrize("name", ["bias", "mask"])
@pytest.mark.parametrize("impl", TRITON)
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_broadcast_gradients_match_reference(impl, name, sizes):
    """Of one number a single draw says little: the errors of several are taken together."""
    results = []
    for seed in range(1 if math.prod(sizes) > 4 else 4):
        inputs = make_inputs((2, 2, 1, 150, 70, 16, 16), seed=seed)
        given = torch.rand(sizes, generator=torch.Generator().manual_seed(seed))
        options = {name: given, "causal": name == "mask", "activation": "silu"}
        ways = ((impl, torch.float32), ("reference", torch.float64), ("reference", torch.float32))
        results.append(
            [
                run(way, dtype, inputs, device_of(impl), **options)[f"d{name}"]
                for way, dtype in ways
            ]
        )
    assert_within_budget(f"d{name}", *map(torch.stack, zip(*results, strict=True)))
