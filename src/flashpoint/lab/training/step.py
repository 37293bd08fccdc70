"""One update of the weights: forward, loss, backward, clip, AdamW, without waiting for the GPU.

An update whose loss or gradient is not finite changes neither weights nor optimizer: the fused
AdamW gets a flag on the device. What happened is counted on the device too, and read when the
loop logs. So a whole update can be captured as a CUDA graph (``CapturedStep``), by this same code.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.training.config import TrainConfig
from flashpoint.lab.training.optimizer import set_rate, skip_if
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.task import Batch, Objective

Update = Callable[[Batch], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What happened in the updates since the counts were last reset.

    Attributes:
        loss, grad_norm: sums over the good updates.
        good: updates that changed the weights.
        bad: updates left out, since the run began.
        bad_row: how many of them just now, in a row.
        worst_row: the longest such row.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    good: float = 0.0
    bad: float = 0.0
    bad_row: float = 0.0
    worst_row: float = 0.0


class Tally:
    """Counts on the device, in the order of ``Counts``."""

    def __init__(self, device: torch.device) -> None:
        self._values = torch.zeros(6, dtype=torch.float64, device=device)

    def add(self, loss: Tensor, grad_norm: Tensor, good: Tensor) -> None:
        """Note an update."""
        values, bad = self._values, (~good).double()
        row = (values[4] + bad) * bad
        noted = torch.stack((loss.double(), grad_norm.double(), torch.ones_like(row)))
        values[:3] += torch.where(good, noted, 0.0)  # a product would keep NaN
        values[3] += bad
        values[4] = row
        values[5] = torch.maximum(values[5], row)

    def read(self) -> Counts:
        """All counts; waits for the device."""
        return Counts(**dict(zip(Counts.__slots__, self._values.tolist(), strict=True)))

    def reset(self, counts: Counts) -> None:
        """Go on from these counts."""
        values = [getattr(counts, name) for name in Counts.__slots__]
        self._values.copy_(torch.tensor(values, dtype=torch.float64))


class Step:
    """Updates a model by one batch at a time.

    Args:
        task: whose loss it is.
        model: as the processes share it.
        optimizer: of the model's parameters.
    """

    def __init__(self, task: Objective, model: Shared, optimizer: torch.optim.AdamW) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.config: TrainConfig = task.config
        self.device = model.ranks.device
        self.tally = Tally(self.device)
        self.is_rehearsal = torch.zeros((), dtype=torch.bool, device=self.device)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next updates."""
        set_rate(self.optimizer, rate)

    def __call__(self, batch: Batch) -> None:
        """Update the weights, or leave them as they are if that cannot be done well."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = zip(*(tensor.chunk(self.config.accumulate) for tensor in batch), strict=True)
        loss = self.model.ranks.mean_(add_gradients(self.task, self.model, list(parts)))
        most = self.config.optimizer.clip
        norm = self.model.clip_(math.inf if most is None else most)
        good = loss.isfinite() & norm.isfinite()
        skip_if(self.optimizer, ~good | self.is_rehearsal)
        self.optimizer.step()
        self.tally.add(loss, norm, good)

    def rehearse(self, batch: Batch) -> None:
        """Do all of an update but for its effects: compilers and libraries work at first calls."""
        counts = self.tally.read()
        self.is_rehearsal.fill_(True)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self(batch)
        self.is_rehearsal.fill_(False)
        self.tally.reset(counts)


def add_gradients(task: Objective, model: Shared, parts: Sequence[Batch]) -> Tensor:
    """Gradients of a whole batch, from its parts one after the other; gives the loss."""
    device, count = model.ranks.device, len(parts)
    is_bf16 = task.config.precision == "bf16"
    total = torch.zeros((), device=device)
    for number, part in enumerate(parts, start=1):
        with model.gradients(are_complete=number == count):
            with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                loss = task.loss(model.forward, part) / count
            loss.backward()
        total += loss.detach()
    return total


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
