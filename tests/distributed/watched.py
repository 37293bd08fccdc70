"""What ranks ask of the operator and of autograd; functions that processes import by name."""

from unittest import mock

import torch
import torch.distributed as dist
from distributed.cases import group_of_size

from flashpoint.distributed import block_calls, sequence_parallel


class _Told:
    """An operator that notes the queries and keys, and the window, of each call."""

    def __init__(self, operator, forward, backward, num_gradients):
        self.operator, self.num_gradients = operator, num_gradients
        self.forward, self.backward = forward, backward

    def run(self, *inputs):
        self._note(self.forward, inputs)
        return self.operator.run(*inputs)

    def run_backward(self, *given):
        self._note(self.backward, given[self.num_gradients : -2])
        return self.operator.run_backward(*given)

    def _note(self, calls, inputs):
        q, k, terms = inputs[0], inputs[1], inputs[-1]
        calls.append((q.shape[2] * k.shape[2], (terms.left, terms.right)))


def calls_of(case, strategy, size):
    """Scores and window of each call of the operator, forward and backward."""
    forward, backward = [], []
    usual = block_calls.operator_for

    def told(*given, with_sums, **options):
        operator = usual(*given, with_sums=with_sums, **options)
        return _Told(operator, forward, backward, 4 if with_sums else 1)

    with mock.patch.object(block_calls, "operator_for", told):
        group = group_of_size(size)
        attend = sequence_parallel(group, strategy, layout=case.layout)
        leaves = case.leaves(case.dtype, dist.get_rank(group))
        case.call(leaves, attend, attend.varlen).sum().backward()
    return forward, backward


def kept_for_backward(case, strategy, size):
    """Shapes and dtypes of what is kept, which of it are q, k, v, and where else tensors are."""
    kept = []
    group = group_of_size(size)
    attend = sequence_parallel(group, strategy, layout=case.layout)
    leaves = case.leaves(case.dtype, dist.get_rank(group))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        o = case.call(leaves, attend, attend.varlen)
    given = [next((n for n, y in leaves.items() if x is y), "made") for x in kept]
    node = o.grad_fn
    elsewhere = [x for x in (*vars(node).values(), *node.call) if isinstance(x, torch.Tensor)]
    return [(*x, y) for x, y in zip(map(_described, kept), given, strict=True)], len(elsewhere)


def _described(x):
    return tuple(x.shape), x.dtype
