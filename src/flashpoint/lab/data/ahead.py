"""Batches that are made on a GPU while the one before is used: by a thread, on a stream."""

import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from flashpoint.lab.data.streamed import Decoded

STEPS_AHEAD = 1
"""Steps that the GPU may be behind when a further batch is made there: each takes memory."""


def one_ahead(batches: Iterator[Decoded], device: torch.device) -> Iterator[Decoded]:
    """The same batches, each made while the one before is used.

    A GPU that is behind is waited for, so that batches do not pile up in its memory.
    """
    maker = _Maker(batches, device)
    maker.start()
    try:
        while (batch := maker.take()) is not None:
            yield batch
            maker.note_use()
    finally:
        maker.stop()


class _Maker(threading.Thread):
    """Makes one batch whenever one was taken."""

    def __init__(self, batches: Iterator[Decoded], device: torch.device) -> None:
        super().__init__(name="flashpoint-batches", daemon=True)
        self._batches, self._device = batches, device
        self._stream = torch.cuda.Stream(device, priority=-1)  # small kernels among large ones
        self._wanted = threading.Semaphore(1)
        self._made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._used: deque[Any] = deque()
        self._is_stopped = False

    def run(self) -> None:
        """Make batches until there are no more, or nobody wants them."""
        torch.cuda.set_device(self._stream.device_index)
        while True:
            self._wanted.acquire()
            if self._is_stopped:
                return
            while len(self._used) > STEPS_AHEAD:
                self._used.popleft().synchronize()
            try:
                with torch.cuda.stream(self._stream):
                    batch = next(self._batches, None)
                    self._made.put((batch, self._stream.record_event()))
            except BaseException as error:  # noqa: BLE001  whoever takes the batch gets it
                self._made.put((error, None))
                return

    def take(self) -> Decoded | None:
        """The next batch, for use on the current stream, which waits until it is there."""
        batch, done = self._made.get()
        if isinstance(batch, BaseException):
            raise batch
        if batch is None:
            return None
        self._wanted.release()
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for tensor in (batch.images, batch.labels):
            tensor.record_stream(current)
        return batch

    def note_use(self) -> None:
        """All that uses the last batch is launched on the current stream."""
        self._used.append(torch.cuda.current_stream(self._device).record_event())

    def stop(self) -> None:
        """End after the batch that is being made."""
        self._is_stopped = True
        self._wanted.release()
        self.join()
