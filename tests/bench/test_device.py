"""What is not here is refused, and inputs are more than the cache holds."""

import pytest
import torch
from implementations import needs_gpu

from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.device import default_device, num_input_sets, own_stream, timer_for
from flashpoint.bench.timing import CpuTimer
from flashpoint.errors import UnsupportedError

CASE = Case(shape=Shape(1, 1, 16, 16), dtype="bf16", mode="forward")


def test_cpu_needs_nothing():
    assert isinstance(timer_for("cpu"), CpuTimer)
    assert num_input_sets(CASE) == 1
    with own_stream("cpu"):
        pass


def test_unknown_device_has_no_timer():
    with pytest.raises(UnsupportedError, match="timing on device 'tpu' is not available"):
        timer_for("tpu")


def test_missing_gpu_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device() == "cpu"
    with pytest.raises(UnsupportedError, match=r"'cuda' is not available: torch .* sees no GPU"):
        timer_for("cuda")


@pytest.mark.gpu
@needs_gpu
def test_small_inputs_rotate_and_large_ones_do_not():
    small = Case(shape=Shape(1, 1, 16, 16), dtype="bf16", mode="forward", device="cuda")
    large = Case(shape=Shape(16, 16, 1024, 64), dtype="bf16", mode="forward", device="cuda")
    assert (num_input_sets(small), num_input_sets(large)) == (8, 1)
