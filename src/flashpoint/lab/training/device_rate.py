"""The rate of large matrix products: what a run and a benchmark use a share of."""

import statistics
import time
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

SIZES = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of both matrices; large enough to reach the device's best rate."""

_PRODUCTS = {"cpu": 1, "cuda": 5}
"""In one sample; in a row, a GPU does not wait for launches."""

_SECONDS, _FEWEST, _MOST = 0.3, 2, 20


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of products of two square matrices, fp32 without TF32; the median of samples."""
    size, products = SIZES[device.type], _PRODUCTS[device.type]
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    samples: list[float] = []
    with _without_tf32():
        torch.mm(a, b)  # makes ready what a first product needs
        while len(samples) < _FEWEST or (len(samples) < _MOST and sum(samples) < _SECONDS):
            samples.append(_seconds(a, b, products))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # the caller's own peak is of interest
    return products * 2.0 * size**3 / statistics.median(samples)


def _seconds(a: Tensor, b: Tensor, products: int) -> float:
    """Of some products in a row, by the clock of the device."""
    if a.device.type == "cpu":
        start = time.perf_counter()
        for _ in range(products):
            torch.mm(a, b)
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(products):
        torch.mm(a, b)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


@contextmanager
def _without_tf32() -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
