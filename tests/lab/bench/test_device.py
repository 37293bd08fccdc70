"""What is not here is refused, and inputs are more than the cache holds."""

from dataclasses import replace

import pytest
import torch
from implementations import needs_gpu

from flashpoint.errors import UnsupportedError
from flashpoint.lab.bench import runner
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.device import default_device, num_input_sets, own_stream, timer_for
from flashpoint.lab.bench.entry import Limits
from flashpoint.lab.bench.plan import Item
from flashpoint.lab.bench.timing import Budget, CpuTimer

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


def test_overhead_is_timed_on_the_host(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    sampler = timer_for("cuda", is_overhead=True).prepare(lambda: events.append("call"), 3)
    assert (sampler.method, sampler.repeats) == ("clock", 3)
    assert 0 < sampler.measure() < 1
    assert events == ["wait", "call", "call", "call"]


def test_timer_is_told_of_overhead_and_launches(monkeypatch):
    told = []

    def timer(device, *, is_overhead, launched):
        told.append((device, is_overhead, launched))
        return CpuTimer()

    monkeypatch.setattr(runner, "timer_for", timer)
    for is_overhead, launched in ((True, False), (False, True)):
        case = replace(CASE, launched=launched)
        item = Item(case=case, providers=("sdpa",), limits=Limits(), is_overhead=is_overhead)
        runner.measure_item(item, Budget(rounds=2, seconds=0.0), lambda _: None)
    assert told == [("cpu", True, False), ("cpu", False, True)]


@pytest.mark.gpu
@needs_gpu
def test_small_inputs_rotate_and_large_ones_do_not():
    small = Case(shape=Shape(1, 1, 16, 16), dtype="bf16", mode="forward", device="cuda")
    large = Case(shape=Shape(16, 16, 1024, 64), dtype="bf16", mode="forward", device="cuda")
    assert (num_input_sets(small), num_input_sets(large)) == (8, 1)
