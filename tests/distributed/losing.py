"""What tests let every rank do where one is lost; functions that processes import by name."""

import os
import signal
import subprocess
import time
from unittest import mock

import torch
import torch.distributed as dist
from distributed.on_ranks import message_of

from flashpoint.distributed import ring, sequence_parallel


def hang(timeout_s, *_):
    """Until all others have ended: they wait for a message, then for those that notice later."""
    time.sleep(2 * timeout_s + 1)
    os._exit(1)


def stop(timeout_s):
    """Hang with all threads, also that of a store."""
    end = f"sleep {2 * timeout_s + 2}; kill -9 {os.getpid()}"
    subprocess.Popen(["sh", "-c", end])
    os.kill(os.getpid(), signal.SIGSTOP)


ENDS = {"dies": lambda _: os._exit(1), "hangs": hang, "stops": stop}


def timed_message_of(function, *given):
    """What a call says, and after how long."""
    start = time.perf_counter()
    said = message_of(function, *given)
    return said, time.perf_counter() - start


def lost_in_backward(how, strategy, timeout_s, lost=1):
    """What the others say when a rank ends between forward and backward."""
    attend = sequence_parallel(None, strategy, timeout_s=timeout_s)
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    o = attend(q, q, q)
    if dist.get_rank() == lost:
        ENDS[how](timeout_s)
    return timed_message_of(o.sum().backward)


def hangs_in_comparison(timeout_s):
    """What rank 0 says if rank 1 stops behind the first comparison of calls that differ."""
    attend = sequence_parallel(None, "ring", timeout_s=timeout_s)
    q = torch.randn(1, 2, 8, 4)
    if dist.get_rank() == 1:
        attend.transport.exchange_texts = lambda *_: hang(timeout_s)
        q = q.double()
    return timed_message_of(attend, q, q, q)


def hangs_in_sums(strategy, dtype, timeout_s):
    """What rank 0 says if rank 1 hangs before sums over ranks."""
    attend = sequence_parallel(None, strategy, timeout_s=timeout_s)
    q = torch.randn(1, 2, 8, 4, dtype=dtype, requires_grad=True)
    if dist.get_rank() == 1:
        attend.transport.reduce_scatter = lambda *_: hang(timeout_s)
    return timed_message_of(lambda: attend(q, q, q).sum().backward())


def hangs_in_total(timeout_s):
    """What rank 0 says if rank 1 does not count what is valid."""
    attend = sequence_parallel(timeout_s=timeout_s)
    q = torch.randn(1, 2, 8, 4)
    seen = attend.visibility_of(q, q, None, False, None)
    if dist.get_rank() == 1:
        hang(timeout_s)
    return timed_message_of(seen.total, torch.ones(8, dtype=torch.bool))


def hangs_in_slow_ring(timeout_s, slowness_s):
    """What the others say if rank 0 hangs, where each rank takes longer than the one before.

    The next rank waits for the lost one a step before the others wait for the next rank.
    """
    rank, attend = dist.get_rank(), sequence_parallel(None, "ring", timeout_s=timeout_s)
    add, pass_on = ring.Partial.add, ring.Travel.pass_on

    def add_slowly(*given):
        time.sleep(rank * slowness_s)
        return add(*given)

    def pass_once(self, step):
        if rank == 0 and step == 1:
            time.sleep(6 * slowness_s)  # until the others have begun to wait
            hang(timeout_s)
        return pass_on(self, step)

    q = torch.randn(1, 2, 8, 4)
    with (
        mock.patch.object(ring.Partial, "add", add_slowly),
        mock.patch.object(ring.Travel, "pass_on", pass_once),
    ):
        return timed_message_of(attend, q, q, q)
