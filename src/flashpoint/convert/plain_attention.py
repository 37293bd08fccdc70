"""Attention as the fewest plain PyTorch operations, for programs that run without Flashpoint.

A program of ``torch.export`` holds our operators, which only a process with Flashpoint has. Here
each of them is written out: MatMul, activation, Mul, MatMul, and of masks, lengths and sums only
what the call has. ``ops.reference`` would serve as well, and does for calls that are rare in a
served model. But it is written to be read and differentiated: it masks and counts even where every
query sees every key. Inference alone is meant here, so hidden scores are not kept from h'.

Shapes: B batch, H heads, Lq and Lk lengths, D head dim.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops import reference
from flashpoint.ops.activation import registered
from flashpoint.ops.library import OPERATORS
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.packed import attend_packed
from flashpoint.ops.spec import Terms


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What ``ExportedProgram.run_decompositions`` puts in the place of each of our operators."""
    forms = {"dense": _attend, "packed": _attend_packed, "varlen": reference.attention_varlen}
    return {
        OPERATORS[form + kind].op.default: _taking_the_schema(form + kind, attend)
        for form, attend in forms.items()
        for kind in ("", "_sums")
    }


def _taking_the_schema(form: str, attend: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an operator's own arguments and results."""
    operator = OPERATORS[form]

    def decomposed(*inputs: Any) -> Any:
        o, sums = attend(*operator.form.gather(inputs))
        return (o, sums) if operator.has_sums else o

    return decomposed


def _attend_packed(*inputs: Any) -> tuple[Tensor, Tensor]:
    def attend(*heads: Any) -> tuple[Tensor, Tensor]:
        o, sums = _attend(*heads)
        return o.transpose(1, 2), sums

    return attend_packed(attend, *inputs)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """The result and the rows' sums of weights, which the graph drops where nobody reads them."""
    if terms.logs:
        return reference.attention(q, k, v, bias, mask, key_lengths, terms)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    if key_lengths is not None:  # not even a NaN in what does not exist reaches the sum
        exists = torch.arange(k.shape[2], device=k.device)[:, None] < key_lengths.view(-1, 1, 1, 1)
        v = v.where(exists, 0)
    k, v = (_for_all_heads(x, q).to(dtype) for x in (k, v))
    scores = (q.to(dtype) * terms.scale_for(q.shape[-1])) @ k.mT  # [B, H, Lq, Lk]
    for added in (terms.bias or None, bias):
        scores = scores if added is None else scores + added
    weights = registered(terms.activation).weights_of(scores)
    visible = _visible(q, k, mask, key_lengths, terms)
    if mask is not None and mask.dtype != torch.bool:
        weights = weights * mask
    if visible is not None:
        weights = weights.where(visible, 0)
    weights = weights.to(dtype)
    sums = weights.sum(-1, keepdim=True)
    power = _power(k.shape[2], visible, terms, dtype)
    o = weights @ v
    if terms.normalize == "sum":
        o = _divide(o, sums + terms.floor * power, terms)
    elif not (isinstance(power, float) and terms.gain * power == 1.0):
        o = o * (terms.gain * power)
    return o.to(q.dtype), sums.squeeze(-1)


def _for_all_heads(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values with a copy for each head of q that shares them."""
    times = q.shape[1] // max(x.shape[1], 1)
    return x if times == 1 else x[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)


def _visible(
    q: Tensor, k: Tensor, mask: Tensor | None, key_lengths: Tensor | None, terms: Terms
) -> Tensor | None:
    """True where a query sees a key, [#B, #H, #Lq, Lk]; None where all see everything."""
    num_queries, num_keys = q.shape[2], k.shape[2]
    key = torch.arange(num_keys, device=k.device)
    position = torch.arange(num_queries, device=q.device)[:, None] + (num_keys - num_queries)
    parts: list[Tensor] = []
    if terms.left is not None:
        parts.append(key >= position - terms.left)
    if terms.right is not None:
        parts.append(key <= position + terms.right)
    if key_lengths is not None:
        parts.append(key < key_lengths.view(-1, 1, 1, 1))
    if mask is not None and mask.dtype == torch.bool:
        parts.append(mask.expand(*mask.shape[:-1], num_keys))
    if not parts:
        return None
    visible = parts[0]
    for part in parts[1:]:
        visible = visible & part
    return visible


def _power(num_keys: int, visible: Tensor | None, terms: Terms, dtype: torch.dtype) -> Any:
    """n_i ** -alpha: a number, or a tensor [#B, #H, #Lq, 1] where it differs or is not known."""
    if terms.alpha == 0.0:
        return 1.0
    if terms.length != "keys" and visible is not None:
        return normalizer(visible.sum(-1, keepdim=True), terms.alpha, dtype)
    if isinstance(num_keys, torch.SymInt):
        return normalizer(torch.scalar_tensor(num_keys, dtype=dtype), terms.alpha, dtype)
    return normalizer(max(num_keys, 1), terms.alpha)


def _divide(o: Tensor, divisor: Tensor, terms: Terms) -> Tensor:
    """By sums of weights with their floor; a row of zeros without a floor stays one."""
    if terms.floor > 0:
        return o / divisor
    nothing = divisor == 0
    return (o / divisor.masked_fill(nothing, 1)).masked_fill(nothing, 0)
