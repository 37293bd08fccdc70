"""Sequences of a varlen call on the CPU: one after another, each as a batch of one."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from flashpoint.ops.check import read_cu_seqlens
from flashpoint.ops.cpu.backward import backward
from flashpoint.ops.cpu.forward import forward
from flashpoint.ops.spec import Terms


def forward_varlen(
    has_sums: bool,
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
) -> list[Tensor]:
    """[Tq, Hq, Dv] from q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]; sums [Hq, Tq]."""
    results = [q.new_empty(q.shape[0], q.shape[1], v.shape[2])]
    if has_sums:
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        planes = (2,) if terms.logs else ()
        results.append(q.new_empty(*planes, q.shape[1], q.shape[0], dtype=dtype))
    ends = read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    for queries, _, inputs in _sequences(q, k, v, bias, mask, *ends):
        o, *sums = forward(has_sums, *inputs, None, terms)
        results[0][queries] = o[0].transpose(0, 1)
        if has_sums:
            results[1][..., queries] = sums[0].squeeze(-3)
    return results


def backward_varlen(
    of_sums: Sequence[Tensor | None],
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
    """As ``backward``, of sequences that follow one another."""
    grads = [x.new_zeros(x.shape) for x in (q, k, v)]
    for x, need in ((bias, need_dbias), (mask, need_dmask)):
        if x is not None and need:
            grads.append(x.new_zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)))
    ends = read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    needs = (need_dbias, need_dmask)
    for b, (queries, keys, inputs) in enumerate(_sequences(q, k, v, bias, mask, *ends)):
        own = _sums_of_sequence(of_sums, queries)
        parts = backward(own, _as_batch(do, queries), *inputs, None, terms, *needs)
        for total, part, rows in zip(grads[:3], parts[:3], (queries, keys, keys), strict=True):
            total[rows] = part[0].transpose(0, 1)
        for total, part in zip(grads[3:], parts[3:], strict=True):
            target = _part(total, b, inputs[0], inputs[1])
            assert target is not None
            target.add_(part)
    wanted = [q, k, v] + ([bias] if need_dbias else []) + ([mask] if need_dmask else [])
    return [g.to(x.dtype) for g, x in zip(grads, wanted, strict=True) if x is not None]


def _sums_of_sequence(of_sums: Sequence[Tensor | None], queries: slice) -> list[Tensor | None]:
    """A sequence's part of the sums' gradient, of o and of the sums, as a batch of one."""
    if not of_sums:
        return []
    dsums, o, sums = of_sums
    dsums, sums = (None if x is None else x[..., queries].unsqueeze(-3) for x in (dsums, sums))
    return [dsums, None if o is None else _as_batch(o, queries), sums]


def _sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_q: list[int],
    cu_k: list[int],
) -> Iterator[tuple[slice, slice, tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]]]:
    """Where each sequence's queries and keys lie; its q, k, v, bias and mask as a batch of one."""
    for b in range(len(cu_q) - 1):
        queries, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        qb, kb, vb = _as_batch(q, queries), _as_batch(k, keys), _as_batch(v, keys)
        yield queries, keys, (qb, kb, vb, _part(bias, b, qb, kb), _part(mask, b, qb, kb))


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
