"""Who serves a call on which GPU, told without one: families, versions of Triton, loads."""

import pytest
import torch
from implementations import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton

from flashpoint.ops.gpu import call as problem
from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.call import Problem
from flashpoint.ops.gpu.device import Gpu
from flashpoint.ops.spec import Terms


def make_gpu(family):
    return Gpu("some GPU", family, 227 * 1024, 132)


@pytest.fixture
def serves(monkeypatch):
    """Whether the Hopper kernels serve a GPU of a family with a version of Triton."""

    def serves(family, version="3.6.0", device="cuda:0", interpreted=False):
        monkeypatch.setattr(dispatch, "gpu_of", lambda _: make_gpu(family))
        monkeypatch.setattr(dispatch, "INTERPRETED", interpreted)
        monkeypatch.setattr(triton, "__version__", version)
        return dispatch.serves.__wrapped__(torch.device(device))

    return serves


def test_hopper_kernels_serve_hopper_alone(serves):
    assert [family for family in (7, 8, 9, 10, 11, 12) if serves(family)] == [9]
    assert not serves(9, device="cpu")
    assert not serves(9, interpreted=True)


def test_hopper_kernels_want_a_gluon_that_is_supported(serves):
    versions = ("3.4.0", "3.5.1", "3.6.0", "3.7.1", "3.8.0", "3.9.0", "3.10.0", "4.0.0")
    assert [v for v in versions if serves(9, v)] == ["3.6.0", "3.7.1", "3.8.0", "3.9.0"]


@pytest.mark.parametrize("family", [8, 9, 10, 12])
@pytest.mark.parametrize(
    ("D", "Lk", "by_engine"),
    [(64, 257, True), (64, 256, False), (72, 64, True), (65, 1000, False), (60, 1000, False)],
)
def test_copy_engine_loads_long_calls_and_rows_that_pointers_load_singly(
    family, D, Lk, by_engine, monkeypatch
):
    monkeypatch.setattr(problem, "gpu_of", lambda _: make_gpu(family))
    monkeypatch.setattr(problem, "INTERPRETED", False)
    q, k = (torch.empty(1, 2, length, D, dtype=torch.bfloat16) for length in (64, Lk))
    call = Problem.dense(q, k, k, None, None, None, Terms())
    tiles = {"BLOCK_M": 64, "BLOCK_N": 64}
    assert call.inputs(tiles)["TMA"] == (by_engine and family >= 9)
    odd = torch.empty(1, 2, 64, D + 1, dtype=torch.bfloat16)[..., :D]
    assert not call.inputs(tiles, odd)["TMA"]
