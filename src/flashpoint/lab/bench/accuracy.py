"""Relative error against fp64, on parts small enough to compute exactly at any length.

A row of o and of dq depends on one query only. Pointwise outputs over disjoint keys add up, so dk
and dv of some keys come from those keys alone. Hence a few heads, rows and keys stand for all.
Softmax providers are not ours: of them o and dq are checked, that nobody times a wrong result. The
gradient of a bias is a sum over samples: some of its rows are computed from all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flashpoint
from flashpoint.lab.bench.calls import Inputs
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.provider import Function, normalize
from flashpoint.ops.options import FLOOR

CHUNK = 64
"""Rows, or keys, that are computed exactly: at the start, in the middle and at the end."""

OUTPUT_BOUNDS: Mapping[str, float] = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 1e-4}
GRADIENT_BOUNDS: Mapping[str, float] = {"bf16": 4e-3, "fp16": 8e-4, "fp32": 1e-4}
"""About twice the largest errors that were measured: 5.8e-3 and 2.3e-3 in bf16 (gradients by their
quantile below), an eighth of it in fp16. A gradient that is 2% off has 5e-3 and more."""

GRADIENT_QUANTILE = 0.95
"""Of a gradient's errors the largest are left out: a score within rounding of relu's kink may fall
on its other side and take one key's share with it, in the reference too."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one head of ``o``, ``dq``, ``dk``, ``dv`` or ``dbias``, exact."""

    name: str
    batch: int
    head: int
    rows: slice
    exact: Tensor  # [rows, D] fp64; of dbias [rows, Lk]


@dataclass(frozen=True, slots=True)
class Head:
    """One head of k and v and the heads of q that share it, in fp64; ``index`` is in k."""

    batch: int
    index: int
    q: Tensor  # [1, G, Lq, D]
    k: Tensor  # [1, 1, Lk, D]
    v: Tensor
    do: Tensor  # [1, G, Lq, D]
    gains: tuple[Tensor, ...]  # of q and k, or none
    dtype: torch.dtype  # of the inputs
    mask: Tensor | None = None  # [1, 1, Lq, Lk]
    bias: Tensor | None = None  # [1, G, Lq, Lk]

    def norm_q(self, q: Tensor) -> Tensor:
        """Some rows of q as they meet the keys."""
        return rounded(normalize(q, self.gains[0]), self.dtype) if self.gains else q

    def norm_k(self, k: Tensor) -> Tensor:
        """Some rows of k as they meet the queries."""
        return rounded(normalize(k, self.gains[1]), self.dtype) if self.gains else k

    def terms(self, rows: slice, keys: slice, heads: slice = slice(None)) -> dict[str, Tensor]:
        """Mask and bias of some queries and keys, by name; the bias of some heads."""
        found: dict[str, Tensor] = {}
        if self.mask is not None:
            found["mask"] = self.mask[:, :, rows, keys]
        if self.bias is not None:
            found["bias"] = self.bias[:, heads, rows, keys]
        return found

    @property
    def offset(self) -> int:
        """Position of the first query: the last one stands at the last key."""
        return self.k.shape[2] - self.q.shape[2]


def error_bound(case: Case) -> float:
    """The relative error up to which rounding explains it; beyond it a result is wrong."""
    is_output = case.mode in ("forward", "recording")
    return (OUTPUT_BOUNDS if is_output else GRADIENT_BOUNDS)[case.dtype]


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as ``dtype`` holds it; gradients pass as if it had not been rounded.

    What norms make is rounded by definition. A reference that did not would have other scores fall
    on the other side of relu's kink, and an error of 2% in every gradient.
    """
    x_fixed = x.detach()
    return x + (x_fixed.to(dtype).to(x.dtype) - x_fixed)


def relative_error(got: Tensor, exact: Tensor, quantile: float = 1.0) -> float:
    """Largest difference, or a quantile, over the largest exact value; Inf and NaN give Inf."""
    differences = (got.detach().double() - exact).abs()
    if not bool(torch.isfinite(differences).all()):
        return float("inf")
    difference = differences.quantile(quantile)
    return (difference / exact.abs().max().clamp_min(torch.finfo(torch.float64).tiny)).item()


def result_error(parts: Sequence[Part], result: object) -> float:
    """Largest relative error over the parts of what a call has returned."""
    tensors: dict[str, Tensor] = {}
    if isinstance(result, Tensor):
        tensors["o"] = result
    elif isinstance(result, tuple):
        tensors.update(zip(("dq", "dk", "dv", "dbias"), result, strict=False))
    return max(
        relative_error(
            tensors[part.name][part.batch, part.head, part.rows],
            part.exact,
            1.0 if part.name == "o" else GRADIENT_QUANTILE,
        )
        for part in parts
        if part.name in tensors
    )


def exact_parts(case: Case, inputs: Inputs, function: Function) -> Iterator[Part]:
    """Parts of the first and the last head, computed in fp64."""
    for head in _outer_heads(case, inputs):
        group = head.q.shape[1]
        for rows in _chunks(case.shape.num_queries):
            o, dq = _exact_rows(case, head, rows, function)
            for name, exact in (("o", o), ("dq", dq)):
                yield Part(name, head.batch, head.index * group, rows, exact[0, 0])
        has_gradients = case.mode in ("backward", "training")
        if case.bias == "learned" and has_gradients:
            for rows in _chunks(case.shape.num_queries):
                dbias = _exact_bias_rows(case, inputs, head, rows, function)
                yield Part("dbias", 0, head.index * group, rows, dbias[0, 0])
        if function == "pointwise" and has_gradients:
            for keys in _chunks(case.shape.length):
                dk, dv = _exact_keys(case, head, keys)
                for name, exact in (("dk", dk), ("dv", dv)):
                    yield Part(name, head.batch, head.index, keys, exact[0, 0])


def _outer_heads(case: Case, inputs: Inputs) -> Iterator[Head]:
    """The first head of k in the first sample and the last one in the last."""
    group = case.shape.heads // case.shape.num_kv_heads
    for batch, index in {(0, 0), (case.shape.batch - 1, case.shape.num_kv_heads - 1)}:
        shared = slice(index * group, (index + 1) * group)
        q, do = (t[batch, shared].detach().double()[None] for t in (inputs.q, inputs.do))
        k, v = (t[batch, index].detach().double()[None, None] for t in (inputs.k, inputs.v))
        gains = tuple(gain.detach().double() for gain in inputs.gains)
        mask = None if inputs.mask is None else inputs.mask[batch, None]
        bias = None if inputs.bias is None else inputs.bias[:, shared].detach().double()
        yield Head(batch, index, q, k, v, do, gains, inputs.q.dtype, mask, bias)


def _chunks(length: int) -> list[slice]:
    """Some rows at the start, in the middle and at the end."""
    starts = sorted({0, max(0, (length - CHUNK) // 2), max(0, length - CHUNK)})
    return [slice(start, min(start + CHUNK, length)) for start in starts]


def _exact_rows(case: Case, head: Head, rows: slice, function: Function) -> tuple[Tensor, Tensor]:
    """``o`` and ``dq`` of some queries; causal ones stand at the end of the keys they see."""
    seen = slice(0, rows.stop + head.offset) if case.causal else slice(None)
    q = head.q[:, :1, rows].clone().requires_grad_()
    k, v = head.norm_k(head.k[:, :, seen]), head.v[:, :, seen]
    terms = head.terms(rows, seen, heads=slice(1))
    o = _attend_exactly(case, function, head.norm_q(q), k, v, terms)
    (dq,) = torch.autograd.grad(o, q, head.do[:, :1, rows])
    return o.detach(), dq


def _exact_bias_rows(
    case: Case, inputs: Inputs, head: Head, rows: slice, function: Function
) -> Tensor:
    """The gradient of a head's bias for some queries, out of all samples: [1, 1, rows, Lk]."""
    assert inputs.bias is not None
    group = head.q.shape[1]
    own, shared = slice(head.index * group, head.index * group + 1), slice(head.index, None)
    q, do = (t[:, own, rows].detach().double() for t in (inputs.q, inputs.do))
    k, v = (t[:, shared][:, :1].detach().double() for t in (inputs.k, inputs.v))
    bias = inputs.bias[:, own, rows].detach().double().requires_grad_()
    terms = {"bias": bias} | ({"mask": inputs.mask[:, :, rows]} if inputs.mask is not None else {})
    o = _attend_exactly(case, function, head.norm_q(q), head.norm_k(k), v, terms)
    return torch.autograd.grad(o, bias, do)[0]


def _attend_exactly(
    case: Case, function: Function, q: Tensor, k: Tensor, v: Tensor, terms: Mapping[str, Tensor]
) -> Tensor:
    """By the definition of either function; the last query stands at the last key."""
    if function == "softmax":
        return _softmax_attention(q, k, v, causal=case.causal, **terms)
    options: dict[str, Any] = {**case.options, **terms}
    return flashpoint.attention(q, k, v, **options, impl="reference")


def _softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The definition; the last query stands at the last key."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def _exact_keys(case: Case, head: Head, keys: slice) -> tuple[Tensor, Tensor]:
    """``dk`` and ``dv`` of some keys; the normalizer of every query is put into ``do``.

    Of rows that are divided by their sums, what that takes off a weight's gradient is given to the
    sum of these keys' weights.
    """
    visible, mask = _sight(case, head, keys)
    k, v = (t[:, :, keys].clone().requires_grad_() for t in (head.k, head.v))
    terms = {"bias": case.options.get("bias")} | head.terms(slice(None), keys)
    options: dict[str, Any] = terms | {"mask": mask}
    o, sums = flashpoint.attention(
        head.norm_q(head.q),
        head.norm_k(k),
        v,
        activation=case.options["activation"],
        length=1,
        return_sums=True,
        impl="reference",
        **options,
    )
    if case.by_sum:
        do, dsums = _given_by_sums(case, head, visible)
    else:
        do, dsums = head.do / visible[:, None], torch.zeros_like(sums)
    dk, dv = torch.autograd.grad((o, sums), (k, v), (do, dsums))
    return dk, dv


def _sight(case: Case, head: Head, keys: slice) -> tuple[Tensor, Tensor | None]:
    """How many keys each query sees, [Lq], and which of ``keys``, [Lq, keys]; None: all."""
    length = head.k.shape[2]
    key = torch.arange(length, device=head.k.device)
    position = torch.arange(head.offset, length, device=head.k.device)  # of each query
    if head.mask is not None:
        whole = head.mask[0, 0].tril(head.offset) if case.causal else head.mask[0, 0]
        return whole.sum(-1).clamp_min(1), whole[:, keys]
    if case.causal:
        return position + 1, position[:, None] >= key[keys]
    return torch.full_like(position, length), None


def _given_by_sums(case: Case, head: Head, visible: Tensor) -> tuple[Tensor, Tensor]:
    """do_i over its divisor, and minus that times o_i, for all queries."""
    k, parts = head.norm_k(head.k), []
    for rows in torch.arange(head.q.shape[2], device=head.q.device).split(CHUNK):
        seen = slice(0, int(rows[-1]) + 1 + head.offset) if case.causal else slice(None)
        span = slice(int(rows[0]), int(rows[-1]) + 1)
        options: dict[str, Any] = {**case.options, **head.terms(span, seen)}
        with torch.no_grad():
            o, sums = flashpoint.attention(
                head.norm_q(head.q[:, :, rows]),
                k[:, :, seen],
                head.v[:, :, seen],
                **options,
                return_sums=True,
                impl="reference",
            )
        do = head.do[:, :, rows] / (sums[..., None] + FLOOR * visible[rows, None])
        parts.append((do, -(do * o).sum(-1)))
    do, dsums = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    return do, dsums
