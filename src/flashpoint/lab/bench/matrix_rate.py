"""The rate of one large matrix product: what attention's own rate is a share of."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from flashpoint.lab.bench.device import timer_for
from flashpoint.lab.bench.inputs import TORCH_DTYPES
from flashpoint.lab.bench.timing import Budget, interleave, start

SIZES = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of both matrices; large enough to reach the device's best rate."""
BUDGET = Budget(rounds=20, seconds=0.5)


def measure_matrix_rate(device: str, dtype: str) -> float:
    """FLOP/s of a product of two square matrices, fp32 without TF32."""
    size = SIZES[device]
    a, b = torch.randn(2, size, size, device=device).to(TORCH_DTYPES[dtype])
    timer = timer_for(device)
    with _without_tf32():
        started, _ = start(lambda: a @ b, timer, compiles=device != "cpu")
        timing = interleave({"product": started}, BUDGET, timer)["product"]
    return 2.0 * size**3 / timing.median_s


@contextmanager
def _without_tf32() -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
