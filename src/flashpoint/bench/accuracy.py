"""Relative error against fp64, on parts small enough to compute exactly at any length.

A row of o and of dq depends on one query only. Outputs over disjoint keys add up, so dk and dv of
some keys come from those keys alone. Hence a few heads, rows and keys stand for all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import flashpoint
from flashpoint.bench.cases import Case
from flashpoint.bench.providers import Inputs

CHUNK = 64
"""Rows, or keys, that are computed exactly: at the start, in the middle and at the end."""

WRONG_BEYOND: Mapping[str, float] = {"bf16": 3e-2, "fp16": 4e-3, "fp32": 1e-4}
"""No rounding explains a larger relative error: the result is wrong."""

GRADIENT_QUANTILE = 0.95
"""Of a gradient's errors the largest are left out: a score within rounding of relu's kink may fall
on its other side and take one key's share with it, in the reference too."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one head of ``o``, ``dq``, ``dk`` or ``dv``, exact."""

    name: str
    batch: int
    head: int
    rows: slice
    exact: Tensor  # [rows, D] fp64


def relative_error(got: Tensor, exact: Tensor, quantile: float = 1.0) -> float:
    """Largest difference, or a quantile, over the largest exact value; Inf and NaN give Inf."""
    differences = (got.detach().double() - exact).abs()
    if not bool(torch.isfinite(differences).all()):
        return float("inf")
    difference = differences.quantile(quantile)
    return (difference / exact.abs().max().clamp_min(torch.finfo(torch.float64).tiny)).item()


def case_error(case: Case, inputs: Inputs, result: object) -> float:
    """Largest relative error over the parts of what ``make_call`` has returned."""
    tensors: dict[str, Tensor] = {}
    if isinstance(result, Tensor):
        tensors["o"] = result
    elif isinstance(result, tuple):
        tensors.update(zip(("dq", "dk", "dv"), result, strict=True))
    return max(
        relative_error(
            tensors[part.name][part.batch, part.head, part.rows],
            part.exact,
            1.0 if part.name == "o" else GRADIENT_QUANTILE,
        )
        for part in exact_parts(case, inputs)
        if part.name in tensors
    )


def exact_parts(case: Case, inputs: Inputs) -> Iterator[Part]:
    """Parts of the first and the last head, computed in fp64 by the reference."""
    _, _, length, _ = case.shape.sizes
    starts = {0, max(0, (length - CHUNK) // 2), max(0, length - CHUNK)}
    for batch, head in {(0, 0), (case.shape.batch - 1, case.shape.heads - 1)}:
        q, k, v, do = (
            tensor[batch, head].detach().double()[None, None]  # [1, 1, L, D]
            for tensor in (inputs.q, inputs.k, inputs.v, inputs.do)
        )
        for start in starts:
            rows = slice(start, min(start + CHUNK, length))
            o, dq = _exact_rows(case, q, k, v, do, rows)
            found = {"o": o, "dq": dq}
            if case.mode == "training":
                found["dk"], found["dv"] = _exact_keys(case, q, k, v, do, rows)
            for name, exact in found.items():
                yield Part(name, batch, head, rows, exact[0, 0])


def _exact_rows(
    case: Case, q: Tensor, k: Tensor, v: Tensor, do: Tensor, rows: slice
) -> tuple[Tensor, Tensor]:
    """``o`` and ``dq`` of some queries; causal ones stand at the end of the keys they see."""
    seen = slice(0, rows.stop) if case.causal else slice(None)
    q_rows = q[:, :, rows].clone().requires_grad_()
    o = flashpoint.attention(
        q_rows,
        k[:, :, seen],
        v[:, :, seen],
        activation=case.activation,
        causal=case.causal,
        impl="reference",
    )
    (dq,) = torch.autograd.grad(o, q_rows, do[:, :, rows])
    return o.detach(), dq


def _exact_keys(
    case: Case, q: Tensor, k: Tensor, v: Tensor, do: Tensor, keys: slice
) -> tuple[Tensor, Tensor]:
    """``dk`` and ``dv`` of some keys; the normalizer 1/n of every query is put into ``do``."""
    length = q.shape[-2]
    rows = torch.arange(length, device=q.device)
    visible = rows + 1 if case.causal else torch.full_like(rows, length)
    mask = rows[:, None] >= rows[keys] if case.causal else None  # [L, keys]
    k_part = k[:, :, keys].clone().requires_grad_()
    v_part = v[:, :, keys].clone().requires_grad_()
    o = flashpoint.attention(
        q,
        k_part,
        v_part,
        activation=case.activation,
        length=1,
        mask=mask,
        impl="reference",
    )
    dk, dv = torch.autograd.grad(o, (k_part, v_part), do / visible[:, None])
    return dk, dv
