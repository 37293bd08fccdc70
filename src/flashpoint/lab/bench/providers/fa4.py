"""FlashAttention-4, where ``flash-attn-4`` is installed: softmax, on Hopper and newer GPUs."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.provider import Attend, Provider

HOPPER = (9, 0)


def _bind(case: Case) -> Attend:
    from flash_attn.cute import flash_attn_func  # pyright: ignore[reportMissingImports]

    call: Any = flash_attn_func

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, L, H, D]
        o, _ = call(q, k, v, causal=case.causal)  # the last query sees the last key, as in ours
        return o.transpose(1, 2)

    return attend


def _refuse(case: Case) -> str | None:
    """What it does not compute, or cannot here."""
    if case.device != "cuda":
        return "FlashAttention-4 needs a CUDA device"
    if case.dtype == "fp32":
        return "FlashAttention-4 has no fp32"
    if case.has_matrix:
        return "FlashAttention-4 takes no tensor as a mask or a bias"
    if find_spec("flash_attn") is None or find_spec("flash_attn.cute") is None:
        return "FlashAttention-4 is not installed; pip install flash-attn-4"
    found = torch.cuda.get_device_capability()
    if found < HOPPER:
        return f"FlashAttention-4 wants compute capability 9.0 or more, this GPU has {found}"
    return None


PROVIDERS = (Provider(name="fa4", function="softmax", bind=_bind, refusal=_refuse),)
