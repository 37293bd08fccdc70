"""What tests let ranks measure; functions that processes import by name."""

from unittest import mock

import torch
import torch.distributed as dist
from distributed.cases import group_of_size
from distributed.on_ranks import message_of

import flashpoint
from flashpoint.distributed import measure_rates, measuring, sequence_parallel, shard
from flashpoint.distributed.strategy import check_rates

SMALL = {"num_heads": 2, "head_dim": 16}


def rates_of(size, factors):
    """Rates where clocks of some ranks run too fast, so that these seem slow."""
    group = group_of_size(size)
    factor = factors.get(dist.get_rank(group), 1)
    usual = measuring.perf_counter
    clock = mock.Mock(side_effect=lambda: factor * usual())
    with mock.patch.object(measuring, "perf_counter", clock):
        rates = measure_rates(group, **SMALL)
    check_rates(rates)
    return tuple(rates)


def state_is_kept():
    """Whether a measurement leaves draws, autocast's dtype and gradients as they were."""
    group = group_of_size(2)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        measure_rates(group, **SMALL)
        is_on = torch.is_autocast_enabled("cpu")
    return torch.equal(before, torch.get_rng_state()) and is_on and torch.is_grad_enabled()


def attended():
    """A call by measured rates: how far it is off one process, its choice and its estimates."""
    group = group_of_size(2)
    attend = sequence_parallel(group, "auto", rates=measure_rates(group, **SMALL))
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 24, 16, dtype=torch.float64)
    o = attend(*(shard(x, group, dim=2) for x in (q, k, v)), causal=True)
    exact = shard(flashpoint.attention(q, k, v, causal=True), group, dim=2)
    chosen = attend.chosen
    return (o - exact).abs().max().item(), chosen.strategy, dict(chosen.seconds)


def refused(by_rank):
    """What ranks hear that cannot measure."""
    group = group_of_size(2)
    return message_of(measure_rates, group, **by_rank.get(dist.get_rank(group), {}))
