"""The operators as PyTorch knows them: schemas, shapes, FLOP counts and kernels of each.

``torch.ops.flashpoint.attention``, ``attention_varlen`` and ``attention_qkvpacked`` are opaque to
torch.compile and export, have fake kernels for tracing, and differentiate through ``*_backward``
operators of their own.

``attention_sums`` and its kin give the rows' sums of weights beside the result. They serve calls
that want them and calls that divide by them; only the latter keep their outputs for backward.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.cpu.backward import backward
from flashpoint.ops.cpu.forward import forward
from flashpoint.ops.cpu.packed import backward_packed, forward_packed
from flashpoint.ops.cpu.varlen import backward_varlen, forward_varlen
from flashpoint.ops.flops import flops, flops_backward, flops_packed, flops_packed_backward
from flashpoint.ops.implementations import INTERPRETED
from flashpoint.ops.operator import Form, Kernels, Operator
from flashpoint.ops.spec import NormTerms, Terms

_SCORED = "Tensor? bias, Tensor? mask"
_NORMS = "str q_kind, float q_eps, str k_kind, float k_eps"
_TERMS = (
    "str activation, float alpha, str length, float gain, float? scale, float bias_number, "
    "SymInt? left, SymInt? right, str normalize, float floor, bool logs"
)


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def _fake_packed(qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], *qkv.shape[3:])


def _fake_sums(q: Tensor, *_: Any) -> Tensor:
    return q.new_empty(q.shape[:-1], dtype=_sums_dtype(q))


def _fake_sums_varlen(q: Tensor, *_: Any) -> Tensor:
    return q.new_empty(q.shape[1], q.shape[0], dtype=_sums_dtype(q))


def _fake_sums_packed(qkv: Tensor, *_: Any) -> Tensor:
    B, L, H = qkv.shape[0], qkv.shape[1], qkv.shape[3]
    return qkv.new_empty(B, H, L, dtype=_sums_dtype(qkv))


def _sums_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@cache
def _on_gpu() -> dict[str, Kernels]:
    """By form. Triton is imported by the first call that needs it."""
    from flashpoint.ops.gpu import attend, packed

    return {
        "dense": Kernels(attend.launch_forward, attend.launch_backward),
        "varlen": Kernels(attend.launch_forward_varlen, attend.launch_backward_varlen),
        "packed": Kernels(packed.launch_packed_forward, packed.launch_packed_backward),
    }


_QKV = f"Tensor q, Tensor k, Tensor v, {_SCORED}"
_ENDS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_QKV_PACKED = f"Tensor qkv, Tensor? q_gain, Tensor? k_gain, {_SCORED}"

_DENSE = Form(f"{_QKV}, Tensor? key_lengths, {_TERMS}", (Terms,), 3, _fake, flops, flops_backward)
_VARLEN = Form(f"{_QKV}, {_ENDS}, {_TERMS}", (Terms,), 3, _fake, flops, flops_backward)
_PACKED = Form(
    f"{_QKV_PACKED}, Tensor? key_lengths, {_NORMS}, {_TERMS}",
    (NormTerms, Terms),
    1,
    _fake_packed,
    flops_packed,
    flops_packed_backward,
)
# by name: an operator's own, what its calls look like, their sums, and what computes on a CPU
_FORMS = {
    "dense": ("attention", _DENSE, _fake_sums, Kernels(forward, backward)),
    "varlen": (
        "attention_varlen",
        _VARLEN,
        _fake_sums_varlen,
        Kernels(forward_varlen, backward_varlen),
    ),
    "packed": (
        "attention_qkvpacked",
        _PACKED,
        _fake_sums_packed,
        Kernels(forward_packed, backward_packed),
    ),
}


def _kernels_on_gpu(form: str) -> Callable[[], Kernels]:
    return cache(lambda: _on_gpu()[form])


def _kernels_on_cpu(form: str) -> Callable[[], Kernels]:
    return lambda: _FORMS[form][3]


def _operators(
    suffix: str, **kernels: Callable[[str], Callable[[], Kernels]]
) -> dict[str, Operator]:
    """By form, those that give sums under ``form_sums``; kernels by type of device and form."""
    made: dict[str, Operator] = {}
    for form, (name, shape, fake_sums, _) in _FORMS.items():
        given = {device: of_form(form) for device, of_form in kernels.items()}
        made[form] = Operator(f"{name}{suffix}", shape, given)
        with_sums = shape.with_sums(fake_sums)
        made[f"{form}_sums"] = Operator(f"{name}_sums{suffix}", with_sums, given)
    return made


OPERATORS = _operators("", cpu=_kernels_on_cpu, cuda=_kernels_on_gpu)
# The same with the GPU's kernels for CPU tensors, where Triton interprets them.
OPERATORS_INTERPRETED = _operators("_interpreted", cpu=_kernels_on_gpu) if INTERPRETED else {}


def operator_for(form: str, chosen: str, x: Tensor, *, with_sums: bool) -> Operator:
    """The operator for calls of a form by the implementation chosen.

    ``x`` is one of the call's tensors.
    """
    known = OPERATORS_INTERPRETED if INTERPRETED and chosen == "triton" and x.is_cpu else OPERATORS
    return known[f"{form}_sums" if with_sums else form]
