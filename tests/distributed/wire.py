"""What leaves a rank, counted where torch.distributed takes it: nobody's own word for it."""

import torch
import torch.distributed as dist
from distributed.cases import group_of_size, run_sharded
from torch.utils._python_dispatch import TorchDispatchMode


class Wire(TorchDispatchMode):
    """Bytes that this rank sends to others, forward and backward.

    Attributes:
        sent: of inputs, results and gradients.
        numbers: of the calls' comparison.
    """

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size
        self.sent, self.numbers = [0, 0], 0

    @classmethod
    def _should_skip_dynamo(cls):
        """Else every process imports the compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self._take(*getattr(self, func._opname)(*args))
        return func(*args, **(kwargs or {}))

    def _take(self, message, elements):
        num_bytes = elements * message.element_size()
        if message.dtype == torch.int64:
            self.numbers += num_bytes
        else:
            is_backward = torch._C._current_graph_task_id() >= 0
            self.sent[is_backward] += num_bytes

    def _allgather_base_(self, _, message, *__):
        return message, (self.size - 1) * message.numel()

    def _reduce_scatter_base_(self, _, message, *__):
        return message, message.numel() - message.numel() // self.size

    def alltoall_base_(self, _, message, __, ___, splits, *____):
        return message, sum(splits) - splits[self.rank]

    def send(self, messages, *_):
        (message,) = messages
        return message, message.numel()

    def recv_(self, messages, *_):
        return messages[0], 0


def run_on_wire(cases, size):
    """Of every (case, strategy) the bytes and the elements by the transport's own count.

    Both forward and backward; then the bytes of comparisons.
    """
    group, found = group_of_size(size), []
    for case, strategy in cases:
        with Wire(dist.get_rank(group), size) as wire:
            _, counted = run_sharded(case, strategy, group)
        found.append((tuple(wire.sent), counted, wire.numbers))
    return found
