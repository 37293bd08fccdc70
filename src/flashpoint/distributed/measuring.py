"""How fast this group's links and this device's attention are: the rates that "auto" goes by."""

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

from flashpoint.distributed.agreement import Agreement, Signature
from flashpoint.distributed.group import Mesh, group_of
from flashpoint.distributed.strategy import Rates
from flashpoint.distributed.transport import Transport
from flashpoint.errors import InputError, LostRankError, UnsupportedError, describe
from flashpoint.ops.api import attention
from flashpoint.ops.check import DTYPES, check_count

NUM_WARMUPS = 2  # the first compiles and connects
NUM_REPEATS = 15
GATHERED_BYTES = {"cuda": 2**27, "cpu": 2**23}
"""Of all ranks together: enough to be bound by the links, and an eighth of a second where they
carry 1 GB/s."""
FLOPS = {"cuda": 1e12, "cpu": 2e9}
"""Of a call: a millisecond or two on an H200, some ten on a core of a CPU."""
_ALIGNMENT = 512  # of messages in bytes: NCCL is slower with odd ones
_TILE = 128  # lengths are multiples of it, as kernels like them


def measure_rates(
    mesh: Mesh = None,
    *,
    dtype: torch.dtype | None = None,
    num_heads: int = 16,
    head_dim: int = 64,
    timeout_s: float | None = None,
) -> Rates:
    """The speeds of this very group, for ``rates=`` of ``sequence_parallel``.

    Every rank of the group calls it, with the same arguments, and gets the same rates: the least
    that any of them has, since a step takes as long as its slowest rank. That takes about a second
    once kernels are compiled, and more over links slower than 1 GB/s.

    The link is measured by all-gathers, and the kernels by forward relu attention: on this rank's
    current GPU where the group has NCCL, else on the CPU.

    Two measurements of one machine differ, on a busy CPU by twice and more, so another may choose
    another strategy, which adds in another order. Who wants the same bits again passes ``Rates``
    of numbers that were written down.

    Args:
        mesh: as for ``sequence_parallel``: a process group, a DeviceMesh of one dimension, or
            None for all ranks.
        dtype: that attention computes in; None: bf16 on a GPU, fp32 on a CPU.
        num_heads, head_dim: of the layers that will use the rates. The length is chosen so that
            the device is full for a short time.
        timeout_s: how long a CPU waits for another rank, which may still compile kernels; None:
            as long as the group does.

    Returns:
        Both rates, finite and positive. A group of one rank sends nothing: its link is a copy on
        the device.

    Example:
        >>> import torch.distributed as dist
        >>> from flashpoint.distributed import sequence_parallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> rates = measure_rates(num_heads=4)
        >>> rates.link_bytes_per_s > 0 and rates.flops_per_s > 0
        True
        >>> attend = sequence_parallel(rates=rates)
        >>> dist.destroy_process_group()
    """
    transport = Transport(group_of(mesh), "measure_rates", timeout_s)
    device = _device_of(transport)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    _agree(transport, device, dtype, num_heads, head_dim)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        flops_per_s = _least(
            transport, lambda: _attention_rate(device, dtype, num_heads, head_dim)
        )
        link_bytes_per_s = _least(transport, lambda: _link_rate(transport, device))
    return Rates(link_bytes_per_s, flops_per_s)


def _least(transport: Transport, measure: Callable[[], float]) -> float:
    """Of all ranks; where one cannot measure, all hear so, and nobody waits for it."""
    failed: RuntimeError | None = None
    rate = 0
    try:
        rate = max(1, round(measure()))
    except LostRankError:
        raise
    except RuntimeError as error:  # such as memory that is full
        failed = error
    (rates,) = zip(*transport.exchange_numbers([rate], "rates"), strict=True)
    if failed is not None:
        raise failed
    if min(rates) == 0:
        raise UnsupportedError(
            f"rank {rates.index(0)} could not measure its rates; its own error says why. Pass "
            "Rates of numbers that you know."
        )
    return float(min(rates))


def _device_of(transport: Transport) -> torch.device:
    """Where the group's tensors lie."""
    if not transport.has_nccl:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _agree(
    transport: Transport, device: torch.device, dtype: Any, num_heads: Any, head_dim: Any
) -> None:
    """That all ranks measure the same; what is wrong on one of them is raised on all."""
    try:
        if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
            names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
            raise InputError(f"dtype must be one of torch's {names}. Got {describe(dtype)}.")
        check_count("num_heads", num_heads, 1)
        check_count("head_dim", head_dim, 1)
        made = {"dtype": str(dtype).removeprefix("torch."), "device": device.type}
        made |= {"num_heads": int(num_heads), "head_dim": int(head_dim)}
        signature = Signature({"call": "measure_rates", **made})
    except InputError as problem:
        signature = Signature({}, problem=problem)
    Agreement("always").ask(transport, signature)


def _attention_rate(
    device: torch.device, dtype: torch.dtype, num_heads: int, head_dim: int
) -> float:
    """FLOP/s of forward attention, counted as ``auto`` counts them."""
    # In fp64 a GPU goes by plain PyTorch, which keeps all scores: a long call would not fit.
    flops = FLOPS["cpu" if dtype == torch.float64 else device.type]
    tiles = round(math.sqrt(flops / (4 * num_heads * head_dim)) / _TILE)
    length = max(tiles * _TILE, _TILE, num_heads)  # a shorter one looks like [B, L, H, D]
    generator = torch.Generator(device).manual_seed(0)  # draws of the caller stay as they are
    shape = (3, 1, num_heads, length, head_dim)
    q, k, v = torch.randn(shape, generator=generator, device=device).to(dtype)
    seconds = _median_s(device, lambda: attention(q, k, v))
    return 4 * num_heads * length**2 * head_dim / seconds


def _link_rate(transport: Transport, device: torch.device) -> float:
    """Bytes a second that this rank sends in an all-gather; one rank alone copies them."""
    pieces = math.ceil(GATHERED_BYTES[device.type] / (transport.size * _ALIGNMENT))
    message = torch.zeros(pieces * _ALIGNMENT, dtype=torch.uint8, device=device)
    shapes = [[tuple(message.shape)]] * transport.size
    seconds = _median_s(device, lambda: transport.all_gather([message], shapes, "rates"))
    return max(transport.size - 1, 1) * len(message) / seconds


def _median_s(device: torch.device, act: Callable[[], object]) -> float:
    """What one of several repeats takes.

    They follow each other without a gap: an all-gather ends when all ranks have come to it, so
    that the next one begins everywhere at once, and nobody's waiting is counted.
    """
    for _ in range(NUM_WARMUPS):
        act()
    spans = _spans_on_gpu(act) if device.type == "cuda" else _spans(act)
    return max(median(spans), 1e-9)  # a coarse clock may not move


def _spans(act: Callable[[], object]) -> list[float]:
    """Seconds of each repeat, by the host's clock."""
    times = [perf_counter()]
    for _ in range(NUM_REPEATS):
        act()
        times.append(perf_counter())
    return [stop - start for start, stop in pairwise(times)]


def _spans_on_gpu(act: Callable[[], object]) -> list[float]:
    """The same by the GPU's clock: hosts run ahead of it, and what they do is not counted."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(NUM_REPEATS + 1)]
    events[0].record()
    for event in events[1:]:
        act()
        event.record()
    events[-1].synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in pairwise(events)]
