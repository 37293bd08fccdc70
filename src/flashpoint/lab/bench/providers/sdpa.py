"""PyTorch's softmax attention: its own choice of a backend, and each backend by itself."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.plain import refuse_large_matrix
from flashpoint.lab.bench.providers.provider import Attend, Provider

_CUDA_ONLY = (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def _attend_by(
    backend: SDPBackend, attend: Attend, q: Tensor, k: Tensor, v: Tensor, **terms: Tensor
) -> Tensor:
    """Let one backend serve or refuse."""
    with sdpa_kernel(backend):
        return attend(q, k, v, **terms)


def _attend_over(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Its mask is ours if bool, and our bias if not."""
    return attend(q, k, v, attn_mask=bias if mask is None else mask)


def _bind(case: Case, backend: SDPBackend | None = None) -> Attend:
    grouped = case.shape.num_kv_heads != case.shape.heads
    attend = partial(F.scaled_dot_product_attention, is_causal=case.causal, enable_gqa=grouped)
    if case.has_matrix:
        attend = partial(_attend_over, attend)
    return attend if backend is None else partial(_attend_by, backend, attend)


def _refuse(case: Case, backend: SDPBackend | None = None) -> str | None:
    """What would be another function, another device, or too large."""
    if case.causal and case.shape.num_queries != case.shape.length:
        return "its causal mask starts at the first key, ours ends at the last"
    if case.causal + (case.mask != "none") + case.has_bias_tensor > 1:
        return "it takes one of causality, a mask and a bias"
    if backend in _CUDA_ONLY and case.device != "cuda":
        return "this backend needs a CUDA device"
    return refuse_large_matrix(case) if backend == SDPBackend.MATH else None


def _provider(name: str, backend: SDPBackend | None) -> Provider:
    return Provider(
        name=name,
        function="softmax",
        bind=partial(_bind, backend=backend),
        refusal=partial(_refuse, backend=backend),
    )


PROVIDERS = (
    _provider("sdpa", None),
    _provider("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION),
    _provider("sdpa_flash", SDPBackend.FLASH_ATTENTION),
    _provider("sdpa_efficient", SDPBackend.EFFICIENT_ATTENTION),
    _provider("sdpa_math", SDPBackend.MATH),
)
