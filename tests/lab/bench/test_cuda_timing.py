"""Events and graphs on a GPU; nothing of it runs without one."""

import pytest
import torch
from implementations import needs_gpu

from flashpoint.lab.bench.calls import make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.device import own_stream
from flashpoint.lab.bench.providers.registry import PROVIDERS

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
]


@pytest.fixture
def timer():
    from flashpoint.lab.bench.cuda_timing import CudaTimer

    with own_stream("cuda"):
        yield CudaTimer()


@pytest.mark.parametrize("mode", ["forward", "backward", "training"])
@pytest.mark.parametrize("name", ["flashpoint", "sdpa_flash", "sdpa_cudnn"])
def test_short_calls_are_captured(timer, name, mode):
    case = Case(shape=Shape(2, 4, 256, 64), dtype="bf16", mode=mode, device="cuda")
    call = make_call(PROVIDERS[name], case, make_inputs(case))
    for _ in range(3):
        call()
    sampler = timer.prepare(call, 10)
    assert (sampler.method, sampler.repeats) == ("graph", 10)
    assert 0 < sampler.measure() / 10 < 1e-3


def test_long_calls_are_launched(timer, monkeypatch):
    from flashpoint.lab.bench import cuda_timing

    least = 1e-3
    monkeypatch.setattr(cuda_timing, "GRAPH_BELOW_S", least)
    a = torch.randn(8192, 8192, device="cuda")
    sampler = timer.prepare(lambda: a @ a, 2)
    assert sampler.method == "events"
    assert sampler.measure() > least


def test_call_that_cannot_be_captured_is_launched(timer):
    x = torch.ones(16, device="cuda")
    sampler = timer.prepare(lambda: x.sum().item(), 3)
    assert (sampler.method, sampler.repeats) == ("events", 3)
    assert sampler.measure() > 0


def test_random_numbers_work_after_a_failed_capture(timer):
    x = torch.ones(16, device="cuda")
    timer.prepare(lambda: x.sum().item(), 3)
    assert 0 < torch.rand(1000, device="cuda").mean().item() < 1
    torch.manual_seed(0)


def test_graph_takes_the_time_of_its_calls(timer):
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    few, many = (timer.prepare(lambda: a @ a, n) for n in (20, 80))
    times = [min(sampler.measure() for _ in range(5)) for sampler in (few, many)]
    assert times[1] / times[0] == pytest.approx(4, rel=0.25)


def test_launched_calls_are_timed_one_by_one():
    from flashpoint.lab.bench.cuda_timing import LaunchTimer

    case = Case(shape=Shape(2, 4, 256, 64), dtype="bf16", mode="forward", device="cuda")
    with own_stream("cuda"):
        call = make_call(PROVIDERS["flashpoint"], case, make_inputs(case))
        call()
        sampler = LaunchTimer().prepare(call, 10)
        assert (sampler.method, sampler.repeats) == ("launches", 10)
        assert 0 < sampler.measure() / 10 < 1e-3
