"""PyTorch's signature and meanings, for code that calls scaled_dot_product_attention.

SDPA knows masks that are added, causality from the top left and any number of batch dims. All
become what ``attention`` knows, by shapes alone: no value is looked at, so nothing waits for a GPU
and torch.compile sees one graph.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.ops.activation import Activation
from flashpoint.ops.api import attention
from flashpoint.ops.check import (
    check_dense,
    check_finite,
    check_flag,
    check_number,
    check_scores,
    check_tensor,
    is_readable,
)
from flashpoint.ops.implementations import Impl
from flashpoint.ops.options import BIAS_ADVICE, FLOOR, Normalize, Number, Window
from flashpoint.shapes import Float

_attend: Callable[..., Any] = attention


def exchange_attend(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``attend`` compute in ``attention``'s place from now on; gives what did so far.

    It takes ``attention``'s arguments, and ``from_first`` for causality from the top left.
    """
    global _attend
    before, _attend = _attend, attend
    return before


def current_attend() -> Callable[..., Any]:
    """What computes: ``attention``, unless a context manager has exchanged it."""
    return _attend


def scaled_dot_product_attention(
    query: Float[Tensor, "*N Lq E"],
    key: Float[Tensor, "*M Lk E"],
    value: Float[Tensor, "*K Lk Ev"],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Number | None = None,
    enable_gqa: bool = False,
    *,
    activation: str | Activation = "relu",
    normalize: Normalize = "length",
    floor: Number = FLOOR,
    alpha: Number = 1.0,
    length: str | Number = "visible",
    bias: Number | Tensor | None = None,
    window: Window | None = None,
    impl: Impl = "auto",
) -> Float[Tensor, "*O Lq Ev"]:
    """``attention`` with the arguments of ``torch.nn.functional.scaled_dot_product_attention``.

    It can be assigned in that function's place. With ``activation="exp", normalize="sum",
    floor=0`` it gives the same results, as long as no exp overflows.

    Args:
        query, key, value: [..., Hq, L, E], [..., H, S, E] and [..., H, S, Ev], two dims or more.
            Dims before the last two broadcast.
        attn_mask: broadcasts to [..., Hq, L, S]. Bool: True may look. Float: added to the scores,
            with a gradient; -inf hides the key for any activation, and the key does not count in
            n_i. A large negative number is a number: its key counts. NaN and +inf are refused on a
            CPU; on a GPU values are not read. A ``torch.nn.attention.bias.CausalBias`` serves too.
            Over shards (``flashpoint.distributed``) S are the keys of all ranks.
        dropout_p: must be 0.
        is_causal: query i sees keys j <= i, counted from the first ones whatever L and S are.
            ``attention`` counts from the last ones. Not together with attn_mask.
        scale: factor on query . key. None means ``E ** -0.5``.
        enable_gqa: Hq may be a multiple of H.
        activation, normalize, floor, alpha, length, impl: as for ``attention``.
        bias: as for ``attention``, beside attn_mask: a number, or a tensor that broadcasts to
            [..., Hq, L, S].
        window: as for ``attention``: counted from the last query and key.

    Returns:
        [..., Hq, L, Ev], contiguous. A query that sees nothing gets zeros.

    Raises:
        InputError: the arguments do not fit together; one line says which and how.
        UnsupportedError: dropout, or the named implementation cannot serve.

    Example:
        >>> import functools
        >>> q, k, v = torch.randn(3, 2, 4, 5, 16)
        >>> hidden = torch.ones(5, 5).triu(1) > 0
        >>> added = torch.zeros(5, 5).masked_fill(hidden, float("-inf"))
        >>> o = scaled_dot_product_attention(q, k, v, attn_mask=added)
        >>> torch.allclose(o, scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-6)
        True
        >>> options = {"activation": "exp", "normalize": "sum", "floor": 0}
        >>> softmax = functools.partial(scaled_dot_product_attention, **options)
        >>> sdpa = torch.nn.functional.scaled_dot_product_attention
        >>> torch.allclose(softmax(q, k, v, added), sdpa(q, k, v, added), atol=1e-5)
        True
    """
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    if dropout_p != 0.0:
        _refuse_dropout(dropout_p)
    attn_mask, causal, from_top_left = _causality(attn_mask, is_causal)
    q, k, v, outer = _fold_inputs(query, key, value, enable_gqa)
    mask = None
    if attn_mask is not None or isinstance(bias, Tensor):
        shape = (*outer, q.shape[2], _num_columns(attn_mask, bias, k))
        bias, mask = _fold_scored(attn_mask, bias, shape, q, enable_gqa)
    attend = _attend
    if from_top_left and attend is not attention:
        attend = partial(attend, from_first=True)
    elif from_top_left and q.shape[2] != k.shape[2]:
        counted = _count_from_first(q, k, v, bias, window, length)
        k, v, bias, causal, window, length = counted
    o = attend(
        q,
        k,
        v,
        activation=activation,
        normalize=normalize,
        floor=floor,
        alpha=alpha,
        length=length,
        scale=scale,
        bias=bias,
        mask=mask,
        causal=causal,
        window=window,
        impl=impl,
    )
    return o if len(outer) == 2 else o.reshape(*outer, *o.shape[2:])


def _num_columns(attn_mask: Any, bias: Any, k: Tensor) -> int:
    """Keys that masks speak of: those of the call, or of all ranks where k is one's shard."""
    if _attend is attention:
        return k.shape[2]
    given = [x for x in (attn_mask, bias) if isinstance(x, Tensor) and x.dim()]
    return max((x.shape[-1] for x in given), default=1)


def _refuse_dropout(dropout_p: float) -> None:
    probability = check_number("dropout_p", dropout_p)
    if not 0 <= probability <= 1:
        raise InputError(f"dropout_p must lie between 0 and 1. Got {probability:g}.")
    raise UnsupportedError(
        f"dropout_p={probability:g} drops weights, and no implementation here keeps weights to "
        "drop. Pass 0, as modules in eval mode do, and drop from the result."
    )


def _causality(attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor | None, bool, bool]:
    """The mask left, whether the call is causal, and whether that counts from the top left."""
    if attn_mask is None:
        return None, is_causal, is_causal
    if is_causal:
        raise InputError(
            "attn_mask and is_causal=True are both given. Pass one of them: "
            "attn_mask & torch.ones(L, S, dtype=torch.bool).tril() is both as one bool mask."
        )
    if isinstance(attn_mask, Tensor) and type(attn_mask) not in (Tensor, Parameter):
        from torch.nn.attention.bias import CausalBias, CausalVariant

        if isinstance(attn_mask, CausalBias):
            return None, True, attn_mask.variant == CausalVariant.UPPER_LEFT
    return attn_mask, False, False


def _count_from_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Number | Tensor | None,
    window: Window | None,
    length: str | Number,
) -> tuple[Tensor, Tensor, Number | Tensor | None, bool, Window | None, str | Number]:
    """k, v, bias, causal, window and length with which ``attention`` has the causality of SDPA."""
    num_queries, num_keys = q.shape[2], k.shape[2]
    if window is not None:
        raise InputError(
            f"is_causal counts from the first of L={num_queries} queries and S={num_keys} keys, "
            "window from the last. Pass one of them, or a bool attn_mask."
        )
    if num_queries > num_keys:
        return k, v, bias, False, (None, num_queries - num_keys), length
    if isinstance(bias, Tensor):
        bias = bias[..., :num_queries]
    k, v = k[:, :, :num_queries], v[:, :, :num_queries]  # nobody sees the keys behind
    return k, v, bias, True, None, num_keys if length == "keys" else length


def _fold_inputs(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """q, k and v in four dims, and what the result has before its last two."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        _check_rank(name, x, 3 if enable_gqa else 2)
    before = [x.shape[:-2] for x in named.values()]
    alike = [x[:-1] for x in before] if enable_gqa else before
    if len(before[0]) == 2 and alike[0] == alike[1] == alike[2]:
        return query, key, value, tuple(before[0])
    if enable_gqa:
        batch = _broadcast(alike, named, enable_gqa)
        q, k, v = (_fold(x, batch, enable_gqa) for x in named.values())
        return q, k, v, (*batch, q.shape[1])
    outer = _broadcast(before, named, enable_gqa)
    has_heads = len(outer) > 1
    batch = outer[:-1] if has_heads else outer
    q, k, v = (_fold(x, batch, has_heads) for x in named.values())
    heads = outer[-1] if has_heads else 1
    q = q.expand(-1, heads, -1, -1)
    if not k.shape[1] == v.shape[1] == 1:  # one head of k and v serves all as it is
        k, v = (x.expand(-1, heads, -1, -1) for x in (k, v))
    return q, k, v, outer


def _check_rank(name: str, x: Tensor, smallest: int) -> None:
    check_tensor(name, x)
    check_dense(name, x)
    if x.dim() < smallest:
        axes = "heads, tokens" if smallest == 3 else "tokens"
        raise InputError(
            f"{name} has {x.dim()} dimensions, shape {list(x.shape)}; expected {smallest} or "
            f"more, the last of them {axes} and width."
        )


def _broadcast(
    shapes: Sequence[Sequence[int]], named: dict[str, Tensor], enable_gqa: bool
) -> tuple[int, ...]:
    """What the shapes broadcast to."""
    rank = max(map(len, shapes))
    result: list[int] = []
    for sizes in zip(*((1,) * (rank - len(x)) + tuple(x) for x in shapes), strict=True):
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide):
            given = ", ".join(f"{name} {list(x.shape)}" for name, x in named.items())
            advice = "" if enable_gqa else " For heads that share keys, pass enable_gqa=True."
            raise InputError(f"The batch dims of {given} do not broadcast.{advice}")
        result.append(wide[0] if wide else 1)
    return tuple(result)


def _fold(x: Tensor, batch: Sequence[int], has_heads: bool) -> Tensor:
    """x in four dims: its batch dims as one, then heads, and its last two."""
    if not has_heads:
        x = x.unsqueeze(-3)
    if x.dim() < 3:
        x = x[None]
    x = x.expand(*batch, *x.shape[-3:])
    return x.flatten(0, len(batch) - 1) if batch else x[None]


def _fold_scored(
    attn_mask: Tensor | None,
    bias: Number | Tensor | None,
    shape: tuple[int, ...],
    q: Tensor,
    enable_gqa: bool,
) -> tuple[Number | Tensor | None, Tensor | None]:
    """Bias and mask as ``attention`` takes them; ``shape`` is that of the scores."""
    has_heads = enable_gqa or len(shape) > 3

    def fold(name: str, x: Tensor) -> Tensor:
        x = check_scores(name, x, shape, q.device, "query")
        batch = shape[:-3] if has_heads else shape[:-2]
        alone = all(size == 1 for size in x.shape[: len(batch)])
        return _fold(x, [1] * len(batch) if alone else batch, has_heads)

    if isinstance(bias, Tensor):
        bias = fold("bias", bias)
    if attn_mask is None:
        return bias, None
    check_tensor("attn_mask", attn_mask)
    if not attn_mask.is_floating_point():
        return bias, fold("attn_mask", attn_mask)
    hidden = attn_mask == -math.inf
    added = attn_mask.masked_fill(hidden, 0)
    if is_readable(added):
        check_finite("attn_mask", added)
    added = fold("attn_mask", added)
    if bias is not None:
        number = bias if isinstance(bias, Tensor) else check_number("bias", bias, BIAS_ADVICE)
        added = added.to(torch.promote_types(q.dtype, torch.float32)) + number
    return added, fold("attn_mask", ~hidden)
