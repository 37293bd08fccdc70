"""Timing on a GPU: events on the stream, and graphs where launches would decide.

Where launches are to count, each call has events of its own. What a call costs the host is read
off the clock, without either.

The caches are flushed before every sample. That takes the GPU longer than Python needs to launch
the first call, so the start event is followed by work at once, not by a wait for the host.
"""

from collections.abc import Callable

import torch

from flashpoint.lab.bench.timing import Call, CpuTimer, Sampler

FLUSH_BYTES = 256 * 1024**2
"""Several times the L2 cache of any GPU so far."""
GRAPH_BELOW_S = 20e-3
"""Calls no longer than this are replayed from a graph; in longer ones launches are hidden.

It is judged by a single call, with what the host needs before the first launch. A limit of few
milliseconds may stand between two providers for that alone, which are then timed in two ways.
"""
MAX_GRAPH_CALLS = 256


class CudaTimer:
    """Times what is launched on the current stream, which must not be the default one."""

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def seconds_of(self, call: Call) -> float:
        """Time one call by events."""
        return self._time(call)

    def prepare(self, call: Call, repeats: int) -> Sampler:
        """Capture short calls in a graph; where that fails, launch them one after the other."""
        if min(self._time(call) for _ in range(3)) < GRAPH_BELOW_S:  # another process may disturb
            num_calls = min(repeats, MAX_GRAPH_CALLS)
            graph = capture(call, num_calls)
            if graph is not None:
                graph.replay()
                return Sampler(lambda: self._time(graph.replay), num_calls, "graph")

        def launch_all() -> None:
            for _ in range(repeats):
                call()

        return Sampler(lambda: self._time(launch_all), repeats, "events")

    def _time(self, launch: Callable[[], object]) -> float:
        """Seconds between the events before and after, with cold caches."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class LaunchTimer(CudaTimer):
    """Times every call by itself, launched as a program without graphs launches it.

    While the caches are flushed the host gets ahead by some 60 us; what it needs beyond counts.
    """

    def prepare(self, call: Call, repeats: int) -> Sampler:
        """Nothing is captured; every call has cold caches and two events of its own."""

        def measure() -> float:
            return sum(self._time(call) for _ in range(repeats))

        return Sampler(measure, repeats, "launches")


class HostTimer(CpuTimer):
    """Times how long calls take to return; the GPU is idle when the first one begins."""

    def prepare(self, call: Call, repeats: int) -> Sampler:
        """Launch them one after the other, never from a graph."""
        sampler = super().prepare(call, repeats)

        def measure() -> float:
            torch.cuda.synchronize()
            return sampler.measure()

        return sampler._replace(measure=measure)


def capture(call: Call, num_calls: int) -> torch.cuda.CUDAGraph | None:
    """A graph of the calls in a row, or None where one of them cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for _ in range(num_calls):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        _close_failed_capture()
        return None
    return graph


def _close_failed_capture() -> None:
    """Capture something that works: only then does the random generator know that it is over."""
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.current_stream()):
        torch.zeros(1, device="cuda")
