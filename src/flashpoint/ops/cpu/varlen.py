"""Sequences of a varlen call on the CPU: one after another, each as a batch of one."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flashpoint.ops.check import read_cu_seqlens
from flashpoint.ops.cpu.backward import backward
from flashpoint.ops.cpu.forward import forward
from flashpoint.ops.spec import Terms


def forward_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    terms: Terms,
) -> Tensor:
    """[Tq, Hq, Dv] from q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]."""
    o = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
    ends = read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    for b, queries, keys in _sequences(*ends):
        qb, kb, vb = _as_batch(q, queries), _as_batch(k, keys), _as_batch(v, keys)
        biasb, maskb = _part(bias, b, qb, kb), _part(mask, b, qb, kb)
        o[queries] = forward(qb, kb, vb, biasb, maskb, None, terms)[0].transpose(0, 1)
    return o


def backward_varlen(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    terms: Terms,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's shape and dtype."""
    grads = [x.new_zeros(x.shape) for x in (q, k, v)]
    for x, need in ((bias, need_dbias), (mask, need_dmask)):
        if x is not None and need:
            grads.append(x.new_zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)))
    ends = read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    for b, queries, keys in _sequences(*ends):
        qb, kb, vb = _as_batch(q, queries), _as_batch(k, keys), _as_batch(v, keys)
        biasb, maskb = _part(bias, b, qb, kb), _part(mask, b, qb, kb)
        dob = _as_batch(do, queries)
        parts = backward(dob, qb, kb, vb, biasb, maskb, None, terms, need_dbias, need_dmask)
        for total, part, rows in zip(grads[:3], parts[:3], (queries, keys, keys), strict=True):
            total[rows] = part[0].transpose(0, 1)
        for total, part in zip(grads[3:], parts[3:], strict=True):
            target = _part(total, b, qb, kb)
            assert target is not None
            target.add_(part)
    inputs = [q, k, v] + ([bias] if need_dbias else []) + ([mask] if need_dmask else [])
    return [g.to(x.dtype) for g, x in zip(grads, inputs, strict=True) if x is not None]


def _sequences(cu_q: list[int], cu_k: list[int]) -> Iterator[tuple[int, slice, slice]]:
    for b in range(len(cu_q) - 1):
        yield b, slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])


def _as_batch(x: Tensor, rows: slice) -> Tensor:
    """[T, H, D] to the [1, H, L, D] of one sequence."""
    return x[rows].transpose(0, 1).unsqueeze(0)


def _part(x: Tensor | None, b: int, qb: Tensor, kb: Tensor) -> Tensor | None:
    """Sequence b's part of a tensor that broadcasts to [B, Hq, max Lq, max Lk]."""
    if x is None:
        return None
    x = x[b : b + 1] if x.shape[0] > 1 else x
    x = x[:, :, : qb.shape[2]] if x.shape[2] > 1 else x
    return x[..., : kb.shape[2]] if x.shape[3] > 1 else x
