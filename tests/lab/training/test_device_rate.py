"""The rate of a product is that of its operations."""

import pytest
import torch

from flashpoint.lab.training import device_rate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_is_plausible_and_settings_stay(monkeypatch, dtype):
    monkeypatch.setitem(device_rate.SIZES, "cpu", 128)
    before = torch.get_float32_matmul_precision()
    assert 1e6 < device_rate.matrix_rate(torch.device("cpu"), dtype) < 1e14
    assert torch.get_float32_matmul_precision() == before
