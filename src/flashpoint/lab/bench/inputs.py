"""The tensors that a case is measured on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.lab.bench.cases import Case

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
