"""The numbers of a call, from 0 to more than a dtype holds: right results or one-line errors."""

import pytest
import torch
from implementations import FAST, interpreted, on_gpu
from numerics import assert_exact, make_inputs

from flashpoint.ops.spec import BUILTIN

VANISHING = (0.0, -0.0, 1e-46, -1e-46, 1e-300, 1e-30)  # nothing in fp32, and very little
CUT = {  # B, Hq, Hkv, Lq, Lk, D, Dv: into one tile, stacked rows, several tiles on the CPU
    "one tile": ((2, 2, 2, 9, 33, 16, 24), {}),
    "rows with normalizers": ((1, 4, 2, 17, 40, 8, 8), {"causal": True, "alpha": 0.5}),
    "several tiles": ((1, 2, 1, 300, 1100, 16, 16), {"window": (900, 0)}),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "options"), CUT.values(), ids=CUT)
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda activation, options: activation == "sigmoid" and "window" not in options)
@on_gpu(lambda activation, options: activation == "sigmoid" and "window" not in options)
def test_scale_that_vanishes_leaves_no_memory_unwritten(impl, activation, shape, options, dtype):
    inputs = make_inputs(shape)
    for scale in VANISHING[:2] if "window" in options else VANISHING:
        assert_exact(impl, dtype, inputs, activation=activation, scale=scale, **options)
