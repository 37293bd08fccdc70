"""Every pair of head dims from the corners of what kernels serve, forward and backward.

On a GPU under compute-sanitizer, too, which sees what is read or written out of bounds. It does
not bear pytest-xdist, so each of 15 processes takes a share; all together took over three minutes
on an H200 with 16 cores:

    for i in $(seq 15); do compute-sanitizer --tool memcheck --error-exitcode 9 \\
        python -m pytest -m gpu --shard $i/15 tests/ops/test_head_dims.py & done; wait
"""

import pytest
import torch
from implementations import HAS_TRITON, TRITON, needs_gpu, on_gpu
from numerics import assert_exact, make_inputs

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import call, replay

CORNERS = (1, 8, 16, 63, 64, 65, 72, 128, 129, 192, 255, 256)
# dtype; B, Hq, Hkv, Lq, Lk; the most keys that are loaded by pointers and not by descriptors
WAYS = {
    "one tile": (torch.float16, (1, 2, 2, 5, 5), 2**30),
    "descriptors": (torch.float16, (1, 2, 1, 3, 19), 0),
    "pointers": (torch.float32, (1, 2, 1, 3, 19), 2**30),
}
# B, Hq, Hkv, Lq, Lk on a GPU: by pointers; one tile; by the copy engine, or by Hopper's kernels
LENGTHS = ((2, 2, 1, 64, 128), (2, 2, 2, 50, 50), (1, 2, 1, 200, 300))
DTYPES = {"bf16": (torch.bfloat16, 3), "fp16": (torch.float16, 1), "fp32": (torch.float32, 1)}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "sizes", "most"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("D", CORNERS)
@pytest.mark.parametrize("impl", TRITON)
@on_gpu(lambda: False)  # where a compiler takes seconds for each
def test_every_pair_of_head_dims_matches_reference(impl, D, dtype, sizes, most, monkeypatch):
    """Each by one of the ways, whose turn it is."""
    monkeypatch.setattr(call, "MOST_KEYS_BY_POINTERS", most)
    replay._recordings.clear()  # of the other way
    turn = CORNERS.index(D) + list(WAYS.values()).index((dtype, sizes, most))
    for Dv in CORNERS[turn % len(WAYS) :: len(WAYS)]:
        assert_exact(impl, dtype, make_inputs((*sizes, D, Dv)), activation="sigmoid")


@pytest.mark.gpu
@pytest.mark.usual_tiles  # the kernels that are shipped
@needs_gpu
@pytest.mark.parametrize(("dtype", "ways"), DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("Dv", CORNERS)
@pytest.mark.parametrize("D", CORNERS)
def test_every_pair_of_head_dims_is_right_twice_on_a_gpu(D, Dv, dtype, ways):
    """The second call is a replay on other values. bf16 goes all ways, the others one."""
    for lengths in LENGTHS[:ways]:
        for seed in (0, 1):
            assert_exact("triton", dtype, make_inputs((*lengths, D, Dv), seed))
