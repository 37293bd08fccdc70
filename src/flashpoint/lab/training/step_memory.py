"""How much memory an update takes, found out before there is one.

Forward and backward run once on tensors without values (PyTorch's fake tensors), and every
storage is counted while it lives. So no formula has to follow the models: what they keep for
backward, what autocast copies and what a gradient needs on its way is all there. One thing no
trace shows: on a GPU PyTorch sums over rows, as for the gradient of a bias, by partial sums in
memory of its own (``sum_scratch``).
"""

import math
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.step import add_gradients
from flashpoint.lab.training.task import Batch, Task

_TRACED_PARTS = 2
"""Of an accumulated batch: all later ones find the gradients of the first there, too."""

_MOMENTS = 2
"""Tensors of AdamW for each parameter."""

_SUM_THREADS, _SUM_ROWS, _SUM_BLOCKS = 128, 64, 16
"""Of PyTorch's sums over rows: threads and least rows of a block, blocks of a multiprocessor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """Bytes of a process at the peak of an update.

    Attributes:
        parameters, gradients, moments: of the model and of its optimizer.
        activations: all that forward and backward make besides.
        inputs: batches, with those that are read ahead.
    """

    parameters: int
    gradients: int
    moments: int
    activations: int
    inputs: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        parts = (f"{field.name} {gigabytes(getattr(self, field.name))}" for field in fields(self))
        return f"about {gigabytes(self.total)} GB ({', '.join(parts)})"


def gigabytes(count: float) -> str:
    """Bytes as a number of GB in two digits or more.

    Example:
        >>> gigabytes(1_234_567_890), gigabytes(123_456_789_000), gigabytes(4_321_000)
        ('1.2', '123', '0.0043')
    """
    number = count / 1e9
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def estimate(task: Task, ranks: Ranks, batch_size: int | None = None) -> StepMemory:
    """What an update needs in each process; by default with the config's batch.

    Args:
        task: whose model and batches they are; nothing of it is changed.
        ranks: the processes that share a batch.
        batch_size: another one.
    """
    config = task.config
    size = batch_size or config.batch_size
    model = _build(task)
    state = sum(tensor.nbytes for tensor in model.parameters())
    held = state + sum(tensor.nbytes for tensor in model.buffers())
    traced = [_trace(task, ranks, make) for make in task.largest_shares(size)]
    spread = ranks.replica_size if config.parallel.shard else 1
    buckets = ranks.replica_size > 1 and spread == 1  # DDP copies gradients to send them
    return StepMemory(
        parameters=held // spread,
        gradients=state * (2 if buckets else 1) // spread,
        moments=_MOMENTS * state // spread,
        activations=max(0, max(peak for peak, _ in traced) - held - state),
        inputs=max(inputs for _, inputs in traced) + task.bytes_read_ahead(size),
    )


def sum_scratch(rows: int, columns: int, multiprocessors: int) -> int:
    """Bytes of partial sums that PyTorch takes on a GPU to sum so many rows of a matrix.

    Its kernel gives 128 threads 4 columns each and 64 rows or more to a block, until all
    multiprocessors are full, and every thread of a block leaves its sum in fp32: never more than
    about 138 MB on an H200. Narrow matrices go another way, with next to nothing.

    Example:
        >>> sum_scratch(65_536, 256, 132), sum_scratch(65_536, 64, 132)
        (134217728, 0)
    """
    if columns < _SUM_THREADS:
        return 0
    full = math.ceil(multiprocessors * _SUM_BLOCKS * _SUM_THREADS / columns)
    blocks = min(full, math.ceil(rows / _SUM_ROWS))
    return 4 * columns * blocks * _SUM_THREADS


def _build(task: Task) -> nn.Module:
    with torch.device("meta"):
        return task.build_model()


def _trace(task: Task, ranks: Ranks, make: Callable[[], Batch]) -> tuple[int, int]:
    """The peak of forward and backward on a batch, without it, and the bytes of the batch."""
    model, alone = _build(task), Ranks(device=ranks.device)
    eager = torch.compiler.set_stance("force_eager") if task.config.is_compiled else nullcontext()
    # or the compiler would leave alone in training what it meets here
    with eager, FakeTensorMode(allow_non_fake_inputs=True), _Storages() as storages:
        fake = _Alone(model.to_empty(device=ranks.device), alone)
        before = storages.live
        batch = make()
        inputs = storages.live - before
        chunks = [tensor.chunk(task.config.accumulate) for tensor in batch]
        parts = list(zip(*chunks, strict=True))[:_TRACED_PARTS]
        add_gradients(task, fake, parts)
    return storages.peak - inputs, inputs


class _Alone(Shared):
    """A model of tensors without values, in one process; such cannot be moved to a device."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self.ranks, self.module, self.forward, self._ddp = ranks, model, model, None
        self.is_sharded = False


class _Storages(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._note, result)
        if func is torch.ops.aten.sum.dim_IntList and args[0].is_cuda:
            count = torch.cuda.get_device_properties(args[0].device).multi_processor_count
            scratch = sum_scratch(args[0].numel() // max(result.numel(), 1), result.numel(), count)
            self.peak = max(self.peak, self.live + scratch)
        return result

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.live += size
            self.peak = max(self.peak, self.live)
        return tensor

    def _forget(self, key: int, size: int) -> None:
        del self._seen[key]
        self.live -= size
