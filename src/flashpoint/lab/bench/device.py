"""What the kinds of device need: a timer, a stream, how many inputs to rotate through."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from flashpoint.errors import UnsupportedError
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.timing import CpuTimer, Timer
from flashpoint.lab.training.ranks import choose_device

DEVICES = ("cpu", "cuda")
MAX_INPUT_SETS = 8


def timer_for(device: str, *, is_overhead: bool = False, launched: bool = False) -> Timer:
    """The timer that waits for ``device`` to finish, or for the call alone to return.

    Args:
        device: cpu or cuda.
        is_overhead: time how long the host takes.
        launched: time calls one by one, never from a graph.
    """
    if device == "cpu":
        return CpuTimer()
    require(device)
    from flashpoint.lab.bench.cuda_timing import CudaTimer, HostTimer, LaunchTimer

    return HostTimer() if is_overhead else LaunchTimer() if launched else CudaTimer()


def require(device: str) -> None:
    """Refuse a device that is not here."""
    if device not in DEVICES:
        raise UnsupportedError(f"timing on device {device!r} is not available. Pass 'cpu'.")
    choose_device(device)


def default_device() -> str:
    """The GPU if there is one."""
    return choose_device("auto").type


@contextmanager
def own_stream(device: str) -> Generator[None]:
    """Work on a stream of one's own: the default one cannot be captured in a graph."""
    if device == "cpu":
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.synchronize()


def num_input_sets(case: Case) -> int:
    """So many inputs that a call never finds its own in the L2 cache; on the CPU one."""
    if case.device == "cpu":
        return 1
    cache_bytes = torch.cuda.get_device_properties(case.device).L2_cache_size
    return sets_beyond(2 * cache_bytes, case.bytes_moved)


def sets_beyond(total_bytes: int, set_bytes: int) -> int:
    """How many sets exceed ``total_bytes``, within reason.

    Example:
        >>> sets_beyond(100, 30), sets_beyond(100, 200), sets_beyond(100, 1)
        (4, 1, 8)
    """
    return min(MAX_INPUT_SETS, max(1, -(-total_bytes // set_bytes)))
