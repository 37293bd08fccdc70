"""The rate of a product is that of its operations."""

import pytest
import torch

from flashpoint.lab.bench import matrix_rate, timing
from flashpoint.lab.bench.matrix_rate import measure_matrix_rate


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_rate_is_plausible_and_settings_stay(monkeypatch, dtype):
    monkeypatch.setitem(matrix_rate.SIZES, "cpu", 128)
    monkeypatch.setattr(timing, "WARM_S", 0.001)
    before = torch.get_float32_matmul_precision()
    assert 1e6 < measure_matrix_rate("cpu", dtype) < 1e14
    assert torch.get_float32_matmul_precision() == before
