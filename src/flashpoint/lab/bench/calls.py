"""From a case to its tensors, and with a provider to the call that is timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.provider import Provider, normalize_first
from flashpoint.lab.bench.timing import Call

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a call reads; ``do`` is the gradient of the output.

    Attributes:
        gains: of the norms of q and k, where the case has them; fp32, as parameters are.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    gains: tuple[Tensor, ...] = ()

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What gradients are taken of."""
        return self.q, self.k, self.v, *self.gains


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Standard normal tensors, made in place so that no temporary leaves a trace in memory."""
    generator = torch.Generator(case.device).manual_seed(seed)
    dtype = TORCH_DTYPES[case.dtype]
    q_sizes, kv_sizes = case.shape.q_sizes, case.shape.kv_sizes
    q, k, v, do = (
        torch.empty(sizes, dtype=dtype, device=case.device).normal_(generator=generator)
        for sizes in (q_sizes, kv_sizes, kv_sizes, q_sizes)
    )
    gains: tuple[Tensor, ...] = ()
    if case.qk_norm != "none":
        gains = tuple(
            torch.empty(case.shape.dim, device=case.device).normal_(1, 0.1, generator=generator)
            for _ in range(2)
        )
    inputs = Inputs(q, k, v, do, gains)
    if case.mode != "forward":
        for tensor in inputs.leaves:
            tensor.requires_grad_()
    return inputs


def pack(inputs: Inputs) -> Tensor:
    """q, k and v as one projection leaves them, [B, L, 3, H, D]; a leaf of its own."""
    parts = [tensor.detach().transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v)]
    return torch.stack(parts, dim=2).requires_grad_(inputs.q.requires_grad)


def unpack(qkv: Tensor) -> tuple[Tensor, ...]:
    """Views of q, k and v, or of their gradients, [B, H, L, D] each."""
    return tuple(part.transpose(1, 2) for part in qkv.unbind(2))


class Prepared(NamedTuple):
    """A forward with its tensors in place, and what its backward needs.

    Attributes:
        forward: gives o; whether it records a graph is up to the leaves.
        leaves: what gradients are taken of.
        do: the gradient of o.
    """

    forward: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]
    do: Tensor


def prepare(provider: Provider, case: Case, inputs: Inputs) -> Prepared:
    """A provider on the inputs of a case, norms included."""
    if is_packed(provider, case):
        assert provider.bind_packed is not None
        leaves = (pack(inputs), *inputs.gains)
        do = inputs.do.transpose(1, 2).contiguous()
        return Prepared(partial(provider.bind_packed(case), *leaves), leaves, do)
    attend = provider.bind(case)
    if case.qk_norm != "none":
        attend = normalize_first(attend, case)
    return Prepared(partial(attend, *inputs.leaves), inputs.leaves, inputs.do)


def is_packed(provider: Provider, case: Case) -> bool:
    """Whether the call takes [B, L, 3, H, D] and gives [B, L, H, D]."""
    return case.qk_norm != "none" and provider.bind_packed is not None


def by_heads(provider: Provider, case: Case, result: object) -> object:
    """o, or (dq, dk, dv), as [B, H, L, D], from what a call gave; gradients of gains are left."""
    packed = is_packed(provider, case)
    if isinstance(result, Tensor):
        return result.transpose(1, 2) if packed else result
    assert isinstance(result, tuple)
    return unpack(result[0]) if packed else result[:3]


def make_call(provider: Provider, case: Case, inputs: Inputs) -> Call:
    """The call to time: gives o, or the gradients of the leaves in backward and training."""
    forward, leaves, do = prepare(provider, case, inputs)
    if case.mode == "training":
        return lambda: torch.autograd.grad(forward(), leaves, do)
    if case.mode == "backward":
        output = forward()
        return lambda: torch.autograd.grad(output, leaves, do, retain_graph=True)
    return forward


def make_rotating_call(provider: Provider, case: Case, input_sets: Sequence[Inputs]) -> Call:
    """The same on the next inputs each time, beginning with the first."""
    calls = [make_call(provider, case, inputs) for inputs in input_sets]
    if len(calls) == 1:
        return calls[0]
    turns = cycle(calls)
    return lambda: next(turns)()
