"""Sequences of a varlen call on the CPU: one after another, each as a batch of one."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.check import read_cu_seqlens
from flashpoint.ops.cpu.backward import backward, backward_sums
from flashpoint.ops.cpu.forward import forward, forward_sums
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
    for queries, _, inputs in _sequences(q, k, v, bias, mask, *ends):
        o[queries] = forward(*inputs, None, terms)[0].transpose(0, 1)
    return o


def forward_varlen_sums(
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
) -> tuple[Tensor, Tensor]:
    """The same and the rows' sums of weights, [Hq, Tq]."""
    o = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    planes = (2,) if terms.logs else ()
    sums = q.new_empty(*planes, q.shape[1], q.shape[0], dtype=dtype)
    ends = read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    for queries, _, inputs in _sequences(q, k, v, bias, mask, *ends):
        rows, own = forward_sums(*inputs, None, terms)
        o[queries], sums[..., queries] = rows[0].transpose(0, 1), own.squeeze(-3)
    return o, sums


def backward_varlen(do: Tensor, *inputs: Any) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's shape and dtype.

    ``inputs``: those of ``forward_varlen``, then whether bias and mask want gradients.
    """

    def of_sequence(queries: slice, *rest: Any) -> list[Tensor]:
        return backward(_as_batch(do, queries), *rest)

    return _differentiate(of_sequence, *inputs)


def backward_varlen_sums(
    do: Tensor, dsums: Tensor | None, o: Tensor | None, sums: Tensor | None, *inputs: Any
) -> list[Tensor]:
    """The same where the rows' sums have gradients, or divide the result o."""

    def of_sequence(queries: slice, *rest: Any) -> list[Tensor]:
        rows = (None if x is None else _as_batch(x, queries) for x in (do, o))
        of_sums = (None if x is None else x[..., queries].unsqueeze(-3) for x in (dsums, sums))
        (dob, ob), (dsumsb, sumsb) = rows, of_sums
        assert dob is not None
        return backward_sums(dob, dsumsb, ob, sumsb, *rest)

    return _differentiate(of_sequence, *inputs)


def _differentiate(
    of_sequence: Callable[..., list[Tensor]],
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
    """All sequences' gradients put together; ``of_sequence`` gives those of one."""
    grads = [x.new_zeros(x.shape) for x in (q, k, v)]
    for x, need in ((bias, need_dbias), (mask, need_dmask)):
        if x is not None and need:
            grads.append(x.new_zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)))
    ends = read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    for b, (queries, keys, inputs) in enumerate(_sequences(q, k, v, bias, mask, *ends)):
        parts = of_sequence(queries, *inputs, None, terms, need_dbias, need_dmask)
        for total, part, rows in zip(grads[:3], parts[:3], (queries, keys, keys), strict=True):
            total[rows] = part[0].transpose(0, 1)
        for total, part in zip(grads[3:], parts[3:], strict=True):
            target = _part(total, b, inputs[0], inputs[1])
            assert target is not None
            target.add_(part)
    wanted = [q, k, v] + ([bias] if need_dbias else []) + ([mask] if need_dmask else [])
    return [g.to(x.dtype) for g, x in zip(grads, wanted, strict=True) if x is not None]


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
