"""Every pair of head dims is right on a GPU: at corners of tiles, vectors and alignment.

Under compute-sanitizer, too, which also sees what is read or written out of bounds:

    compute-sanitizer --tool memcheck --error-exitcode 9 pytest -m gpu tests/ops/test_head_dims.py
"""

import pytest
import torch
from implementations import HAS_TRITON, needs_gpu
from numerics import assert_exact, make_inputs

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

CORNERS = (1, 8, 16, 63, 64, 65, 72, 128, 129, 192, 255, 256)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# B, Hq, Hkv, Lq, Lk: by pointers; by the copy engine, or on Hopper by its own kernels
LENGTHS = ((2, 2, 1, 64, 128), (1, 2, 1, 200, 300))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("Dv", CORNERS)
@pytest.mark.parametrize("D", CORNERS)
def test_head_dims_are_right_twice(D, Dv, dtype):
    """The second call is a replay on other values."""
    for lengths in LENGTHS:
        for seed in (0, 1):
            assert_exact("triton", dtype, make_inputs((*lengths, D, Dv), seed))
