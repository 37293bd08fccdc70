"""The definition of the operator in plain PyTorch, the oracle for every implementation.

It forms the whole [Lq, Lk] matrix of weights and lets autograd differentiate, any number of times.
Arithmetic is fp32 (fp64 for fp64 inputs); only the result is rounded to the inputs' dtype.
"""

from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.activation import Activation, registered
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.packed import attend_packed
from flashpoint.ops.spec import TINY, NormTerms, Terms
from flashpoint.shapes import Bool, Float, Int


def attention(
    q: Float[Tensor, "B Hq Lq D"],
    k: Float[Tensor, "B Hkv Lk D"],
    v: Float[Tensor, "B Hkv Lk Dv"],
    bias: Float[Tensor, "#B #Hq #Lq #Lk"] | None,
    mask: Tensor | None,
    key_lengths: Int[Tensor, " B"] | None,
    terms: Terms,
) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]:
    """The result and the rows' sums of weights.

    Every sequence of the batch has Lq queries and Lk keys, of which ``key_lengths`` exist.
    """
    num_keys = torch.full((k.shape[0],), k.shape[2], device=k.device)
    existing = num_keys if key_lengths is None else key_lengths
    num_queries = torch.full_like(num_keys, q.shape[2])
    return _attend(q, k, v, bias, mask, terms, num_queries, num_keys, existing)


def attention_qkvpacked(
    qkv: Float[Tensor, "B L 3 H D"],
    q_gain: Float[Tensor, " D"] | None,
    k_gain: Float[Tensor, " D"] | None,
    bias: Float[Tensor, "#B #H #L #L"] | None,
    mask: Tensor | None,
    key_lengths: Int[Tensor, " B"] | None,
    qk_norm: NormTerms,
    terms: Terms,
) -> tuple[Float[Tensor, "B L H D"], Float[Tensor, "B H L"]]:
    """Self-attention after norms of q and k, whose results are rounded to the inputs' dtype."""

    def attend(*inputs: Any) -> tuple[Tensor, Tensor]:
        o, sums = attention(*inputs)
        return o.transpose(1, 2).contiguous(), sums

    return attend_packed(attend, qkv, q_gain, k_gain, bias, mask, key_lengths, qk_norm, terms)


def attention_varlen(
    q: Float[Tensor, "Tq Hq D"],
    k: Float[Tensor, "Tk Hkv D"],
    v: Float[Tensor, "Tk Hkv Dv"],
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens_q: Int[Tensor, " ends"],
    cu_seqlens_k: Int[Tensor, " ends"],
    max_seqlen_q: int,
    max_seqlen_k: int,
    terms: Terms,
) -> tuple[Float[Tensor, "Tq Hq Dv"], Float[Tensor, "Hq Tq"]]:
    """Sequences one after another: padded, attended and put one after another again.

    A sequence is its first ``max_seqlen`` tokens. Tokens of no sequence are zeros in the result.
    """
    num_queries, queries = _places(cu_seqlens_q, max_seqlen_q, q.shape[0])
    num_keys, keys = _places(cu_seqlens_k, max_seqlen_k, k.shape[0])
    padded = (_pad(q, queries), _pad(k, keys), _pad(v, keys))
    o, sums = _attend(*padded, bias, mask, terms, num_queries, num_keys, existing=num_keys)

    def in_a_row(x: Tensor) -> Tensor:
        rows = x.new_zeros(q.shape[0] + 1, x.shape[1], *x.shape[3:])
        return rows.index_put((queries,), x.transpose(1, 2))[:-1]

    if terms.logs:
        return in_a_row(o), torch.stack([in_a_row(part).T for part in sums])
    return in_a_row(o), in_a_row(sums).T.contiguous()


def _attend(
    q: Float[Tensor, "B Hq Lq D"],
    k: Float[Tensor, "B Hkv Lk D"],
    v: Float[Tensor, "B Hkv Lk Dv"],
    bias: Tensor | None,
    mask: Tensor | None,
    terms: Terms,
    num_queries: Int[Tensor, " B"],
    num_keys: Int[Tensor, " B"],
    existing: Int[Tensor, " B"],
) -> tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]:
    """Sample b: queries up to num_queries[b] over keys up to num_keys[b], of which some exist."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    sizes = (num_queries, num_keys, existing)
    num_queries, num_keys, existing = (per_sample.view(-1, 1, 1, 1) for per_sample in sizes)
    key = torch.arange(k.shape[2], device=k.device)
    query = torch.arange(q.shape[2], device=q.device).view(-1, 1)
    position = query + num_keys - num_queries  # [B, 1, Lq, 1]

    exists = key < existing  # [B, 1, 1, Lk]
    k, v = (
        t.where(exists.mT, 0).to(dtype) for t in (k, v)
    )  # nothing comes of what does not exist
    k, v = (t.repeat_interleave(q.shape[1] // max(k.shape[1], 1), dim=1) for t in (k, v))

    visible = _within_window(key, position, terms) & exists & (query < num_queries)
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask

    scores = terms.scale_for(q.shape[-1]) * (q.to(dtype) @ k.mT) + terms.bias  # [B, Hq, Lq, Lk]
    if bias is not None:
        scores = scores + bias
    # Masks come after h. The inner where keeps h' away from scores that nobody sees.
    weights = _activate(scores.where(visible, 0), registered(terms.activation))
    if mask is not None and mask.dtype != torch.bool:
        weights = weights * mask
    weights = weights.where(visible, 0).to(dtype)

    n = num_keys if terms.length == "keys" else visible.sum(-1, keepdim=True)
    power = normalizer(n, terms.alpha, dtype)
    sums = weights.sum(-1, keepdim=True)
    if terms.normalize == "sum":
        divisor = sums + terms.floor * power
        nothing = divisor == 0  # a row of zeros without a floor
        o = ((weights @ v) / divisor.masked_fill(nothing, 1)).masked_fill(nothing, 0)
    else:
        o = terms.gain * power * (weights @ v)
    if terms.logs:
        large = weights.clamp(min=TINY)  # under it w log w goes on as a straight line
        logs = weights * large.log() + (weights - large)
        sums = torch.stack((sums, logs.sum(-1, keepdim=True)))
    return o.to(q.dtype), sums.squeeze(-1)


def _within_window(key: Tensor, position: Tensor, terms: Terms) -> Bool[Tensor, "..."]:
    within = torch.ones_like(position - key, dtype=torch.bool)
    if terms.left is not None:
        within = within & (key >= position - terms.left)
    if terms.right is not None:
        within = within & (key <= position + terms.right)
    return within


def _places(
    cu_seqlens: Int[Tensor, " ends"], longest: int, total: int
) -> tuple[Int[Tensor, " B"], Int[Tensor, "B longest"]]:
    """How many tokens each sequence has, and where they lie; ``total`` is the place of none."""
    place = cu_seqlens[:-1, None] + torch.arange(longest, device=cu_seqlens.device)
    exists = place < cu_seqlens[1:, None]
    return exists.sum(-1), place.where(exists, total)


def _pad(x: Float[Tensor, "T H D"], places: Int[Tensor, "B L"]) -> Float[Tensor, "B H L D"]:
    """The sequences as a batch, zeros behind each one's end."""
    rows = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
    return rows[places].transpose(1, 2)


def _activate(scores: Tensor, activation: Activation) -> Tensor:
    if activation.derivative is None:
        return activation.weights_of(scores)
    weights = _WithDerivative.apply(scores, activation)
    assert isinstance(weights, Tensor)
    return weights


class _WithDerivative(torch.autograd.Function):
    """h with the derivative that its author gave, in place of autograd's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, activation: Activation) -> Tensor:
        return activation.weights_of(scores.clone())  # it may write to its argument or return it

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.activation = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (scores,) = ctx.saved_tensors
        return grads[0] * ctx.activation.slopes_of(scores), None
