"""The public functions: they check, fill in defaults, and hand over to an implementation."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from flashpoint.ops import reference
from flashpoint.ops.activation import Activation
from flashpoint.ops.check import (
    DENSE,
    PACKED,
    check_count,
    check_finite,
    check_index,
    check_inputs,
    check_packed,
    check_scores,
    check_sign,
    is_readable,
    read_cu_seqlens,
    read_key_lengths,
)
from flashpoint.ops.implementations import Impl, choose
from flashpoint.ops.library import operator_for
from flashpoint.ops.options import (
    FLOOR,
    DenseOptions,
    Normalize,
    Number,
    Options,
    PackedOptions,
    ReturnSums,
    Window,
    read_norm,
    read_terms,
)
from flashpoint.ops.qk_norm import HeadNorm
from flashpoint.ops.spec import NormTerms
from flashpoint.shapes import Float, Int


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_sums: Literal[False] = False,
    **options: Unpack[DenseOptions],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_sums: ReturnSums, **options: Unpack[DenseOptions]
) -> Any: ...


def attention(
    q: Float[Tensor, "B Hq Lq D"],
    k: Float[Tensor, "B Hkv Lk D"],
    v: Float[Tensor, "B Hkv Lk Dv"],
    *,
    activation: str | Activation = "relu",
    normalize: Normalize = "length",
    floor: Number = FLOOR,
    alpha: Number = 1.0,
    length: str | Number = "visible",
    scale: Number | None = None,
    bias: Number | Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    key_lengths: Int[Tensor, " B"] | None = None,
    return_sums: ReturnSums = False,
    impl: Impl = "auto",
) -> Float[Tensor, "B Hq Lq Dv"] | tuple[Float[Tensor, "B Hq Lq Dv"], Float[Tensor, "B Hq Lq"]]:
    r"""Attention whose weights pass through a pointwise activation instead of softmax.

    $$w_{ij} = m_{ij}\, h(s\, q_i \cdot k_j + b_{ij})$$

    $$o_i = n_i^{-\alpha} \sum_j w_{ij} v_j \quad \text{or} \quad
    o_i = \frac{\sum_j w_{ij} v_j}{\sum_j w_{ij} + \text{floor} \cdot n_i}$$

    Query i stands at position p = i + Lk - Lq. Outputs over disjoint sets of keys add up; where
    they are divided by their sums, numerators and sums do.

    Args:
        q, k, v: any strides, one floating dtype, one device. Hq is a multiple of Hkv. Products are
            summed in fp32 (fp64 for fp64); the result has q's dtype.
        activation: h, one of relu, relu2, relu3, relu4, relu6, gelu, silu, softplus, sigmoid, exp,
            identity; a name given to ``register_activation``; or an ``Activation`` of your own.
        normalize: what divides the sum over keys: "length", n_i ** alpha; or "sum", the weights'
            own sum, for which h and a float mask must be nonnegative. The result is kept for
            backward then, and must not be changed in place. relu4 with "sum" is the sharpest, and
            "exp" with "sum" and floor 0 is softmax as long as no exp overflows.
        floor: of "sum", per key: rows of small weights are not blown up, and a row of zeros gives
            zeros.
        alpha: exponent of the length, any real number; of "length" only.
        length: n_i. "visible": how many keys query i may see, so that a sample's result never
            depends on its padding; "keys": Lk; or a number, so that shards of the keys add up
            (torch.compile makes a graph for each number).
        scale: s, the factor on the scores. None means ``D ** -0.5``.
        bias: b, a number or a tensor that broadcasts to [B, Hq, Lq, Lk]; a tensor has a gradient.
            It hides no key: -inf, as SDPA adds it, is refused on a CPU. On a GPU and under
            torch.compile values are not read: it gives NaN, or a key that still counts in n_i.
        mask: m, broadcasts likewise. Bool: True may look. Float: multiplies the weight, does not
            change n_i, has a gradient, and must be finite too. Masks act after h, so that a query
            that sees nothing gets zeros.
        causal: keep keys j <= p.
        window: (left, right): keep keys p - left <= j <= p + right; None on a side is unbounded.
        key_lengths: how many keys of each sample exist. It moves no position. On a GPU its values
            are not read, which would stop the host: those beyond Lk count as Lk.
        return_sums: also give the rows' sums of weights, which have gradients. "logs": and those
            of w log w, of which entropies follow; for nonnegative h.
        impl: "reference", "cpu" or "triton" is used or refused, never replaced; "auto" takes the
            fastest that serves these tensors.

    Returns:
        [B, Hq, Lq, Dv], contiguous. With ``return_sums`` a tuple: that, and sum_j w_ij as
        [B, Hq, Lq] in fp32 (fp64 for fp64); by "logs" sum_j w_ij log w_ij behind it.

    Raises:
        InputError: the arguments do not fit together; one line says which and how.
        UnsupportedError: the named implementation cannot serve.

    Example:
        >>> q, k, v = torch.ones(3, 1, 2, 5, 16)
        >>> attention(q, k, v, causal=True)[0, 0, :, 0]
        tensor([4., 4., 4., 4., 4.])
    """
    q, k, v = check_inputs(q, k, v, DENSE)
    division = (normalize, floor, alpha, length)
    terms = read_terms(activation, division, scale, bias, causal, window, return_sums, q.dtype)
    if bias is not None or mask is not None:
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        bias, mask = _check_scored(bias, mask, shape, q.device)
        check_sign(mask, terms)
    if key_lengths is not None:
        check_index("key_lengths", key_lengths, q.shape[0], q.device)
    chosen = "cpu" if impl == "auto" and q.is_cpu else choose(impl, q, v, terms.activation)
    if chosen == "reference":
        if key_lengths is not None and is_readable(key_lengths):
            read_key_lengths(key_lengths, k.shape[2])
        with _outside_autocast(q.device.type):
            o, sums = reference.attention(q, k, v, bias, mask, key_lengths, terms)
        return _results(o, sums, return_sums)
    return _attend("dense", chosen, return_sums, q, k, v, bias, mask, key_lengths, terms)


@overload
def attention_qkvpacked(
    qkv: Tensor, *, return_sums: Literal[False] = False, **options: Unpack[PackedOptions]
) -> Tensor: ...
@overload
def attention_qkvpacked(
    qkv: Tensor, *, return_sums: ReturnSums, **options: Unpack[PackedOptions]
) -> Any: ...


def attention_qkvpacked(
    qkv: Float[Tensor, "B L 3 H D"],
    *,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    activation: str | Activation = "relu",
    normalize: Normalize = "length",
    floor: Number = FLOOR,
    alpha: Number = 1.0,
    length: str | Number = "visible",
    scale: Number | None = None,
    bias: Number | Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    key_lengths: Int[Tensor, " B"] | None = None,
    return_sums: ReturnSums = False,
    impl: Impl = "auto",
) -> Float[Tensor, "B L H D"] | tuple[Float[Tensor, "B L H D"], Float[Tensor, "B H L"]]:
    """``attention`` of tokens to themselves, from one projection to the next: no transposes.

    q, k and v lie as a linear layer leaves them. q and k may be normalized over the head dim; the
    normalized ones are not kept for backward, which needs qkv and the gains only.

    Args:
        qkv: any strides; queries, keys and values are its parts 0, 1 and 2 on the third axis.
        q_norm, k_norm: the norms, ``HeadNorm``s. Computed in fp32 (fp64 for fp64), with gains of
            any floating dtype, and rounded once, to qkv's dtype. None: no norm.
        activation, normalize, floor, alpha, length, scale, causal, window, key_lengths,
            return_sums, impl: as for ``attention``.
        bias, mask: as for ``attention``; a tensor broadcasts to [B, H, L, L].

    Returns:
        [B, L, H, D], contiguous: ``.flatten(2)`` is what the output projection takes. With
        ``return_sums`` a tuple: that, and the sums as [B, H, L].

    Example:
        >>> qkv = torch.nn.Linear(64, 3 * 64)(torch.randn(2, 10, 64)).unflatten(-1, (3, 4, 16))
        >>> attention_qkvpacked(qkv, q_norm=HeadNorm("rms"), k_norm=HeadNorm("rms")).shape
        torch.Size([2, 10, 4, 16])
    """
    qkv = check_packed(qkv)
    q_kind, q_gain, q_eps = read_norm("q_norm", q_norm, qkv)
    k_kind, k_gain, k_eps = read_norm("k_norm", k_norm, qkv)
    qk_norm = NormTerms(q_kind, q_eps, k_kind, k_eps)
    division = (normalize, floor, alpha, length)
    terms = read_terms(activation, division, scale, bias, causal, window, return_sums, qkv.dtype)
    tokens = qkv.shape[1]
    shape = (qkv.shape[0], qkv.shape[3], tokens, tokens)
    bias, mask = _check_scored(bias, mask, shape, qkv.device, "qkv")
    check_sign(mask, terms)
    if key_lengths is not None:
        check_index("key_lengths", key_lengths, qkv.shape[0], qkv.device, "qkv")
    chosen = choose(impl, qkv, qkv, terms.activation, "qkv")
    inputs = (qkv, q_gain, k_gain, bias, mask, key_lengths, qk_norm, terms)
    if chosen == "reference":
        if key_lengths is not None and is_readable(key_lengths):
            read_key_lengths(key_lengths, tokens)
        with _outside_autocast(qkv.device.type):
            o, sums = reference.attention_qkvpacked(*inputs)
        return _results(o, sums, return_sums)
    return _attend("packed", chosen, return_sums, *inputs)


@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_sums: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_sums: ReturnSums,
    **options: Unpack[Options],
) -> Any: ...


def attention_varlen(
    q: Float[Tensor, "Tq Hq D"],
    k: Float[Tensor, "Tk Hkv D"],
    v: Float[Tensor, "Tk Hkv Dv"],
    cu_seqlens_q: Int[Tensor, " ends"],
    cu_seqlens_k: Int[Tensor, " ends"],
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    activation: str | Activation = "relu",
    normalize: Normalize = "length",
    floor: Number = FLOOR,
    alpha: Number = 1.0,
    length: str | Number = "visible",
    scale: Number | None = None,
    bias: Number | Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    return_sums: ReturnSums = False,
    impl: Impl = "auto",
) -> Float[Tensor, "Tq Hq Dv"] | tuple[Float[Tensor, "Tq Hq Dv"], Float[Tensor, "Hq Tq"]]:
    """``attention`` over sequences of different lengths, packed one after another.

    Every sequence is a problem of its own: its queries and keys, its positions (the last query
    stands at the last key), its n_i ("keys" is the number of its keys). Tokens of no sequence give
    zeros and get zero gradients.

    Args:
        q, k, v: all sequences' tokens in a row.
        cu_seqlens_q, cu_seqlens_k: int32 or int64; sequence b has the tokens from entry b up to
            entry b + 1. Entries never decrease, the first is 0, the last the number of tokens.
        max_seqlen_q, max_seqlen_k: at least the longest sequence's length. On a CPU it is an error
            if this or the line above does not hold. On a GPU values are not read, which would stop
            the host: a longer sequence ends there, and what is left over belongs to no sequence.
        activation, normalize, floor, alpha, length, scale, causal, window, return_sums, impl: as
            for ``attention``.
        bias, mask: as for ``attention``; a tensor broadcasts to
            [B, Hq, max_seqlen_q, max_seqlen_k], and each sequence uses its upper left corner.

    Returns:
        [Tq, Hq, Dv], contiguous. With ``return_sums`` a tuple: that, and the sums as [Hq, Tq].

    Example:
        >>> q, k, v = torch.ones(3, 5, 2, 16)
        >>> ends = torch.tensor([0, 2, 5])
        >>> attention_varlen(q, k, v, ends, ends, 3, 3).shape
        torch.Size([5, 2, 16])
    """
    q, k, v = check_inputs(q, k, v, PACKED)
    division = (normalize, floor, alpha, length)
    terms = read_terms(activation, division, scale, bias, causal, window, return_sums, q.dtype)
    num = cu_seqlens_q.shape[0] if isinstance(cu_seqlens_q, Tensor) and cu_seqlens_q.dim() else 0
    check_index("cu_seqlens_q", cu_seqlens_q, max(num, 1), q.device)
    check_index("cu_seqlens_k", cu_seqlens_k, num, q.device)
    check_count("max_seqlen_q", max_seqlen_q)
    check_count("max_seqlen_k", max_seqlen_k)
    shape = (num - 1, q.shape[1], max_seqlen_q, max_seqlen_k)
    bias, mask = _check_scored(bias, mask, shape, q.device)
    check_sign(mask, terms)
    longest = (min(max_seqlen_q, q.shape[0]), min(max_seqlen_k, k.shape[0]))
    bias, mask = _corner(bias, *longest), _corner(mask, *longest)
    tensors = (q, k, v, bias, mask, cu_seqlens_q, cu_seqlens_k)
    chosen = choose(impl, q, v, terms.activation)
    if chosen == "reference":
        if is_readable(cu_seqlens_q):
            read_cu_seqlens(q, k, cu_seqlens_q, cu_seqlens_k, *longest)
        with _outside_autocast(q.device.type):
            o, sums = reference.attention_varlen(*tensors, *longest, terms)
        return _results(o, sums, return_sums)
    return _attend("varlen", chosen, return_sums, *tensors, *longest, terms)


def _attend(form: str, chosen: str, return_sums: ReturnSums, *inputs: Any) -> Any:
    """The call by a registered operator, which gives sums where they are asked for or divide."""
    if not (return_sums or inputs[-1].normalize == "sum"):
        return operator_for(form, chosen, inputs[0], with_sums=False)(*inputs)
    o, sums = operator_for(form, chosen, inputs[0], with_sums=True)(*inputs)
    return _results(o, sums, return_sums)


def _results(o: Tensor, sums: Tensor, return_sums: ReturnSums) -> Any:
    """What the caller asked for."""
    if not return_sums:
        return o
    return (o, sums[0], sums[1]) if return_sums == "logs" else (o, sums)


def _check_scored(
    bias: Any,
    mask: Any,
    shape: tuple[int, int, int, int],
    device: torch.device,
    beside: str = "q",
) -> tuple[Tensor | None, Tensor | None]:
    """Bias and mask with four axes; None where a number or nothing was given."""
    checked: list[Tensor | None] = []
    for name, x in (("bias", bias if isinstance(bias, Tensor) else None), ("mask", mask)):
        checked.append(None if x is None else check_scores(name, x, shape, device, beside))
        if x is not None and x.is_floating_point() and is_readable(x):
            check_finite(name, x)
    return checked[0], checked[1]


def _corner(x: Tensor | None, num_queries: int, num_keys: int) -> Tensor | None:
    """A bias or mask without the room beyond so many queries and keys."""
    if x is not None and x.shape[2] > max(num_queries, 1):
        x = x[:, :, :num_queries]
    if x is not None and x.shape[3] > max(num_keys, 1):
        x = x[..., :num_keys]
    return x


def _outside_autocast(device_type: str) -> AbstractContextManager[Any]:
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
