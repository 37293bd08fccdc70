"""How long a run waits for its data: the share of time in which a step could not begin."""

import time
from collections.abc import Generator
from contextlib import contextmanager

import torch


class Waiting:
    """Times what is done to get a batch, by the clock of the device that then goes on.

    The host of a GPU may fetch a batch while the GPU still works. Only what passes on the GPU
    between the end of a step and the batch for the next one is time lost.

    Args:
        device: that trains.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def measured(self) -> Generator[None]:
        """Get a batch."""
        if self._device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._marks.append((begin, end))
            return
        start = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - start

    def read(self) -> float:
        """Seconds since it was read last; the device must be done with all steps so far."""
        seconds = self._seconds + sum(begin.elapsed_time(end) for begin, end in self._marks) / 1e3
        self._seconds = 0.0
        self._marks.clear()
        return seconds
