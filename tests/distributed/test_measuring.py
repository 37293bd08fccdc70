"""Measured rates are those of the slowest rank, the same everywhere, and serve "auto"."""

from itertools import accumulate, count
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from distributed import measured
from implementations import needs_gpu

from flashpoint.distributed import measure_rates, measuring
from flashpoint.errors import UnsupportedError

LINK, KERNELS = 0, 1


@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_get_the_same_rates(workers, size):
    found = workers.run(measured.rates_of, size, {})
    groups = [found[i : i + size] for i in range(0, len(found), size)]
    for rates in groups:
        assert len(set(rates)) == 1


@pytest.mark.distributed
@pytest.mark.parametrize("slow", [0, 1])
def test_rates_are_those_of_the_slowest_rank(workers, slow):
    usual = workers.run(measured.rates_of, 2, {})
    found = workers.run(measured.rates_of, 2, {slow: 1e4})
    assert found[0] == found[1]
    for what in (LINK, KERNELS):
        assert max(rates[what] for rates in found) < min(rates[what] for rates in usual) / 100


@pytest.mark.distributed
def test_auto_attends_by_measured_rates(workers):
    found = workers.run(measured.attended)
    for error, strategy, seconds in found:
        assert error < 1e-13
        assert strategy == min(seconds, key=seconds.get)
        assert all(time > 0 for time in seconds.values())
    assert found[0][1:] == found[1][1:]


@pytest.mark.distributed
def test_measuring_leaves_no_trace(workers):
    assert all(workers.run(measured.state_is_kept))


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ({1: {"num_heads": 4}}, "rank 1 has num_heads 4, rank 0 has 16."),
        ({1: {"dtype": torch.bfloat16}}, "rank 1 has dtype bfloat16, rank 0 has float32."),
        ({1: {"num_heads": 0}}, "rank 1: num_heads must be an integer >= 1. Got 0."),
        ({0: {"head_dim": 1.5}}, "rank 0: head_dim must be an integer >= 1. Got 1.5."),
        ({1: {"dtype": "bf16"}}, "rank 1: dtype must be one of torch's float32, bfloat16, float"),
    ],
)
def test_wrong_arguments_are_told_to_all_in_one_line(workers, by_rank, said):
    found = workers.run(measured.refused, by_rank)
    assert all(message.startswith(f"InputError: {said}") for message in found), found
    assert all("\n" not in message for message in found)


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.distributed
def test_one_rank_has_the_rate_of_a_copy(alone):
    size = measuring.GATHERED_BYTES["cpu"]
    ticks = mock.Mock(side_effect=count())  # a second for each look at the clock
    with mock.patch.object(measuring, "perf_counter", ticks):
        rates = measure_rates(num_heads=2, head_dim=512)
    length = 640  # the nearest to 2 GFLOP in tiles of 128
    assert rates == (size, 4 * 2 * length**2 * 512)


def test_a_rank_that_cannot_measure_is_named_to_all_others():
    asked = []

    def exchange(numbers, what):
        asked.append((numbers, what))
        return [numbers, [0]]

    transport = SimpleNamespace(exchange_numbers=exchange)
    with pytest.raises(UnsupportedError, match="rank 1 could not measure its rates; its own"):
        measuring._least(transport, lambda: 5.0)

    def fail():
        raise RuntimeError("memory is full")

    with pytest.raises(RuntimeError, match="memory is full"):
        measuring._least(transport, fail)
    assert asked == [([5], "rates"), ([0], "rates")]  # others hear of it before it ends


def test_without_a_group_it_says_how_to_begin():
    with pytest.raises(NotImplementedError, match="is not initialized"):
        measure_rates()


def test_gpu_times_are_those_between_events(monkeypatch):
    monkeypatch.setattr(measuring, "NUM_REPEATS", 5)
    milliseconds = iter(accumulate([0, 5, 1, 9, 2, 4]))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.time = next(milliseconds)

        def elapsed_time(self, other):
            return other.time - self.time

        def synchronize(self):
            assert next(milliseconds, None) is None  # the last of all

    calls = []
    with mock.patch.object(torch.cuda, "Event", Event):
        found = measuring._median_s(torch.device("cuda"), lambda: calls.append(1))
    assert found == 4e-3
    assert len(calls) == measuring.NUM_WARMUPS + measuring.NUM_REPEATS


@pytest.mark.gpu
@needs_gpu
def test_gpu_is_measured_where_nccl_is():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        link, flops = measure_rates()
    finally:
        dist.destroy_process_group()
    assert link > 1e9
    assert flops > 1e12
