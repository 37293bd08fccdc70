"""Every pair of head dims from the corners of what kernels serve, forward and backward."""

import pytest
import torch
from implementations import HAS_TRITON, TRITON, on_gpu
from numerics import assert_exact, make_inputs

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.triton import problem, replay

CORNERS = (1, 8, 16, 63, 64, 65, 72, 128, 129, 192, 255, 256)
# dtype; B, Hq, Hkv, Lq, Lk; the most keys that are loaded by pointers and not by descriptors
WAYS = {
    "one tile": (torch.float16, (1, 2, 2, 5, 5), 2**30),
    "descriptors": (torch.float16, (1, 2, 1, 3, 19), 0),
    "pointers": (torch.float32, (1, 2, 1, 3, 19), 2**30),
}


@pytest.mark.parametrize(("dtype", "sizes", "most"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("D", CORNERS)
@pytest.mark.parametrize("impl", TRITON)
@on_gpu(lambda: False)  # where a compiler takes seconds for each
def test_every_pair_of_head_dims_matches_reference(impl, D, dtype, sizes, most, monkeypatch):
    monkeypatch.setattr(problem, "MOST_KEYS_BY_POINTERS", most)
    replay._recordings.clear()  # of the other way
    for Dv in CORNERS:
        assert_exact(impl, dtype, make_inputs((*sizes, D, Dv)), activation="sigmoid")
