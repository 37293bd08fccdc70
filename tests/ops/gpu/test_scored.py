"""Gradients of a bias or a mask that are sums over whole axes: there the kernel works in parts."""

import math

import pytest
import torch
from implementations import HAS_TRITON, TRITON, device_of
from numerics import assert_within_budget, make_inputs, run

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

BROADCAST = {
    "number": (1, 1, 1, 1),
    "per-head": (1, 2, 1, 1),
    "per-sample": (2, 1, 1, 1),
    "per-query": (1, 1, 150, 1),
    "per-key": (1, 1, 1, 70),
    "per-head-and-key": (1, 2, 1, 70),
    "per-pair": (1, 1, 150, 70),
}


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
