"""The tensors that a case is measured on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.bench.cases import Case

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a call reads; ``do`` is the gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """What gradients are taken of."""
        return self.q, self.k, self.v


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Standard normal tensors, made in place so that no temporary leaves a trace in memory."""
    generator = torch.Generator(case.device).manual_seed(seed)
    dtype = TORCH_DTYPES[case.dtype]
    q_sizes, kv_sizes = case.shape.q_sizes, case.shape.kv_sizes
    q, k, v, do = (
        torch.empty(sizes, dtype=dtype, device=case.device).normal_(generator=generator)
        for sizes in (q_sizes, kv_sizes, kv_sizes, q_sizes)
    )
    if case.mode != "forward":
        for tensor in (q, k, v):
            tensor.requires_grad_()
    return Inputs(q, k, v, do)
