"""Seconds of training, without what happens in between."""

import time
from collections.abc import Generator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Runs from the start, on from ``seconds``; waits for the device before it is read.

    Args:
        device: whose work is timed.
        seconds: of earlier parts of the run.
    """

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self._device = device
        self._before = seconds
        self._since = time.perf_counter()

    def read(self) -> float:
        """Seconds so far."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._before + time.perf_counter() - self._since

    @contextmanager
    def paused(self) -> Generator[None]:
        """Do something that does not count."""
        self._before = self.read()
        try:
            yield
        finally:
            self._since = time.perf_counter()
