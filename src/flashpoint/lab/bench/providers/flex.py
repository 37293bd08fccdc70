"""FlexAttention, compiled: softmax, and pointwise weights through its softmax (the log trick).

FlexAttention always normalizes by softmax. With the score log h(s) its result is the average of v
with weights h(s), and its log-sum-exp is the logarithm of their sum, so that
o = average * exp(lse) / n. That needs weights h(s) >= 0.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.plain import visible_counts
from flashpoint.lab.bench.providers.provider import Attend, Provider, compiled
from flashpoint.ops.activation import find_activation
from flashpoint.ops.options import FLOOR


def log_weights(h: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """log h(scores), and -inf with gradient zero where h is zero."""
    weights = h(scores)
    is_seen = weights > 0
    return torch.where(is_seen, torch.log(torch.where(is_seen, weights, 1.0)), float("-inf"))


def bind_softmax(case: Case) -> Attend:
    """FlexAttention as it is, not yet compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    block_mask, grouped = _block_mask(case), _is_grouped(case)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        score_mod = None if mask is None and bias is None else _over_scores(mask, bias)
        o = flex_attention(q, k, v, score_mod, block_mask, enable_gqa=grouped)
        assert isinstance(o, Tensor)
        return o

    return attend


def _over_scores(mask: Tensor | None, bias: Tensor | None) -> Callable[..., Tensor]:
    """What a mask, of which no block is empty, and a bias make of a score."""

    def score_mod(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if bias is not None:
            score = score + bias[0, h, query, key]
        if mask is not None:
            score = torch.where(mask[b, 0, query, key], score, float("-inf"))
        return score

    return score_mod


def bind_log(case: Case) -> Attend:
    """Flashpoint's function by the log trick, not yet compiled; no weights give zeros."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    block_mask, grouped, causal = _block_mask(case), _is_grouped(case), case.causal
    h, by_sum = find_activation(case.options["activation"]).forward, case.by_sum
    floor, shift = case.options.get("floor", FLOOR), case.options.get("bias", 0.0)
    aux_request = AuxRequest(lse=True)

    def score_mod(score: Tensor, *_: Tensor) -> Tensor:
        return log_weights(h, score + shift if shift else score)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Any = flex_attention(
            q,
            k,
            v,
            score_mod=score_mod,
            block_mask=block_mask,
            enable_gqa=grouped,
            return_aux=aux_request,
        )
        average, lse = found[0], found[1].lse  # [B, H, Lq, D], [B, H, Lq] fp32
        n = visible_counts(q, k) if causal else k.shape[-2]
        sums = torch.exp(lse)[..., None]
        return (average * sums / (sums + floor * n if by_sum else n)).to(q.dtype)

    return attend


@lru_cache(maxsize=8)  # one graph for all uses of a case
def _bind_compiled(bind: Callable[[Case], Attend], case: Case) -> Attend:
    return compiled(bind(case))


def _is_grouped(case: Case) -> bool:
    """Whether several heads of q share one of k and v."""
    return case.shape.num_kv_heads != case.shape.heads


def _block_mask(case: Case) -> Any:
    """Which blocks of keys a block of queries sees, or None for all."""
    if not case.causal:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    length, queries = case.shape.length, case.shape.num_queries
    offset = length - queries

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head
        return key <= query + offset

    return create_block_mask(is_seen, None, None, queries, length, device=case.device)


def _refuse(case: Case) -> str | None:
    """FlexAttention has no backward on the CPU."""
    if case.device == "cpu" and case.mode != "forward":
        return "FlexAttention has no backward on the CPU"
    return None


def _refuse_log(case: Case) -> str | None:
    """Weights below zero have no logarithm, and the CPU gives no log-sum-exp."""
    if case.device == "cpu":
        return "FlexAttention gives no log-sum-exp on the CPU"
    if case.has_matrix:
        return "the log trick is written for scores without a mask or a bias"
    if not find_activation(case.options["activation"]).is_nonnegative:
        return f"weights of {case.activation} may be negative and have no logarithm"
    return None


PROVIDERS = (
    Provider(
        name="flex_softmax",
        function="softmax",
        bind=partial(_bind_compiled, bind_softmax),
        refusal=_refuse,
        compiles=True,
    ),
    Provider(
        name="flex_log",
        function="pointwise",
        bind=partial(_bind_compiled, bind_log),
        refusal=_refuse_log,
        compiles=True,
    ),
)
