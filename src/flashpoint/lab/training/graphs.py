"""A whole update as one CUDA graph: one launch instead of hundreds."""

from typing import Any

import torch

from flashpoint.errors import InputError
from flashpoint.lab.training.step import Step
from flashpoint.lab.training.task import Batch

_REHEARSALS = 3


class CapturedStep:
    """Replays a step on batches of the shape it was captured with.

    Rehearsals come first, then the capture. Weights, optimizer and counts are as they were.

    Args:
        step: what is captured; its tensors keep their addresses from then on.
        batch: any batch; its values do not matter.
        pool: memory that it may share with other captured steps, as
            ``torch.cuda.graph_pool_handle`` gives it: none of them needs what another leaves.
    """

    def __init__(self, step: Step, batch: Batch, pool: Any = None) -> None:
        self._step = step  # a graph knows addresses only: weights must not be freed under it
        self._inputs = tuple(tensor.clone() for tensor in batch)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_REHEARSALS):
                step.rehearse(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Threads that load data go on calling CUDA meanwhile.
        with torch.cuda.graph(self._graph, pool, capture_error_mode="thread_local"):
            step(self._inputs)

    def __call__(self, batch: Batch) -> None:
        """Update the weights by one batch."""
        for kept, given in zip(self._inputs, batch, strict=True):
            if kept.shape != given.shape:
                raise InputError(
                    f"a batch of shape {list(given.shape)} cannot be replayed by a graph of "
                    f"{list(kept.shape)}. Set compile: default."
                )
            kept.copy_(given)
        self._graph.replay()
