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
        mask: [B, 1, Lq, Lk], where the case has one; every query sees a key.
        bias: [1, H, Lq, Lk], where the case has one, in q's dtype.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    gains: tuple[Tensor, ...] = ()
    mask: Tensor | None = None
    bias: Tensor | None = None

    @property
    def terms(self) -> dict[str, Tensor]:
        """Mask and bias by the names that providers take them by."""
        named = {"mask": self.mask, "bias": self.bias}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What gradients are taken of: of q, k and v, then of gains, at last of a bias."""
        return self.q, self.k, self.v, *self.gains, *self.learned

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """The bias, where it has a gradient."""
        return (self.bias,) if self.bias is not None and self.bias.requires_grad else ()


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Standard normal tensors, made in place so that no temporary leaves a trace in memory."""
    generator = torch.Generator(case.device).manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        empty = torch.empty(sizes, dtype=TORCH_DTYPES[case.dtype], device=case.device)
        return empty.normal_(generator=generator)

    q, k, v, do = _heads(case, normal)
    gains: tuple[Tensor, ...] = ()
    if case.qk_norm != "none":
        gains = tuple(
            torch.empty(case.shape.dim, device=case.device).normal_(1, 0.1, generator=generator)
            for _ in range(2)
        )
    bias = normal(1, *_matrix_sizes(case)[1:]) if case.has_bias_tensor else None
    mask = _make_mask(case, generator) if case.mask == "bool" else None
    inputs = Inputs(q, k, v, do, gains, mask, bias)
    if case.mode != "forward":
        if bias is not None and case.bias == "learned":
            bias.requires_grad_()
        for tensor in inputs.leaves:
            tensor.requires_grad_()
    return inputs


def _heads(case: Case, normal: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """q, k, v and do as [B, H, L, D], however they lie in memory."""
    q, kv = case.shape.q_sizes, case.shape.kv_sizes
    if case.layout == "heads":
        return normal(*q), normal(*kv), normal(*kv), normal(*q)
    if case.layout == "packed":
        batch, heads, length, dim = q
        return *unpack(normal(batch, length, 3, heads, dim)), _by_tokens(q, normal)
    return tuple(_by_tokens(sizes, normal) for sizes in (q, kv, kv, q))


def _by_tokens(sizes: tuple[int, int, int, int], normal: Callable[..., Tensor]) -> Tensor:
    batch, heads, length, dim = sizes
    return normal(batch, length, heads, dim).transpose(1, 2)


def _matrix_sizes(case: Case) -> tuple[int, int, int, int]:
    """Of the scores."""
    batch, heads, queries, _ = case.shape.q_sizes
    return batch, heads, queries, case.shape.length


def _make_mask(case: Case, generator: torch.Generator) -> Tensor:
    """Half of the keys at random, and the key where a query stands."""
    batch, _, queries, length = _matrix_sizes(case)
    mask = torch.empty(batch, 1, queries, length, dtype=torch.bool, device=case.device)
    mask.bernoulli_(generator=generator)
    mask.diagonal(length - queries, -2, -1).fill_(True)
    return mask


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
        tensors = (pack(inputs), *inputs.gains)
        do = inputs.do.transpose(1, 2).contiguous()
        forward = partial(provider.bind_packed(case), *tensors, **inputs.terms)
        return Prepared(forward, (*tensors, *inputs.learned), do)
    attend = provider.bind(case)
    if case.qk_norm != "none":
        attend = normalize_first(attend, case)
    tensors = (inputs.q, inputs.k, inputs.v, *inputs.gains)
    return Prepared(partial(attend, *tensors, **inputs.terms), inputs.leaves, inputs.do)


def is_packed(provider: Provider, case: Case) -> bool:
    """Whether the call takes [B, L, 3, H, D] and gives [B, L, H, D]."""
    wants_it = case.qk_norm != "none" or case.layout == "packed"
    return wants_it and provider.bind_packed is not None


def by_heads(provider: Provider, case: Case, result: object) -> object:
    """o, or (dq, dk, dv), as [B, H, L, D], from what a call gave, and the gradient of a bias.

    Gradients of gains are left out.
    """
    packed = is_packed(provider, case)
    if isinstance(result, Tensor):
        return result.transpose(1, 2) if packed else result
    assert isinstance(result, tuple)
    of_bias = result[-1:] if case.bias == "learned" else ()
    return (*(unpack(result[0]) if packed else result[:3]), *of_bias)


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
