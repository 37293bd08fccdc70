"""What a call may look like. Each rule is tested once; an error names the rule and the numbers."""

import itertools
import math
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter

from flashpoint.bounds import plain_number
from flashpoint.errors import InputError, describe
from flashpoint.ops.activation import Activation
from flashpoint.ops.spec import Terms

Axes = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LARGEST = torch.finfo(torch.float32).max
FARTHEST = 2**40  # more keys than a window can reach over; sums with it stay within int64
DENSE: Axes = (("B", "Hq", "Lq", "D"), ("B", "Hkv", "Lk", "D"), ("B", "Hkv", "Lk", "Dv"))
PACKED: Axes = (("Tq", "Hq", "D"), ("Tk", "Hkv", "D"), ("Tk", "Hkv", "Dv"))
QKV_AXES = "[B, L, 3, H, D]"
SCORES_AXES = {"q": ("B", "Hq", "Lq", "Lk"), "qkv": ("B", "H", "L", "L")}  # by what a call has
_told_of_layout = False
_layout_is_known = ContextVar("_layout_is_known", default=False)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, axes: Axes) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v if they fit together, in autocast's dtype where it is on.

    ``axes`` names the axes of q, of k and of v.
    """
    _check_kinds(q, k, v)
    if torch._C._is_any_autocast_enabled():
        q, k, v = cast_for_autocast(q, k, v)
    q_shape, k_shape, v_shape, rank = q.shape, k.shape, v.shape, len(axes[0])
    if not (len(q_shape) == len(k_shape) == len(v_shape) == rank):
        _explain_rank(q, k, v, axes)
    dtype = q.dtype
    if not (dtype is k.dtype and dtype is v.dtype and dtype in DTYPES):
        _explain_dtype(q, k, v)
    if not (q.is_cpu and k.is_cpu and v.is_cpu) and not q.device == k.device == v.device:
        devices = f"{q.device}, {k.device} and {v.device}"
        raise InputError(f"q, k and v must be on one device. Got {devices}.")
    fits = 0 < q_shape[-1] == k_shape[-1]
    fits = fits and k_shape[0] == v_shape[0] and k_shape[1] == v_shape[1]
    if rank == 4:
        fits = fits and q_shape[0] == k_shape[0] and k_shape[2] == v_shape[2]
    if not fits:
        _explain_shapes(q_shape, k_shape, v_shape, axes)
    q_heads, kv_heads = q_shape[1], k_shape[1]  # in either layout
    if q_heads % kv_heads if kv_heads else q_heads:
        raise InputError(
            f"q has {q_heads} heads, which is not a multiple of the {kv_heads} heads of k and v. "
            "Every key head must serve the same number of query heads."
        )
    if rank == 4 and not is_compiling() and q_heads > q_shape[2] >= k_shape[2] > 1:
        _tell_of_layout(q, k)
    return q, k, v


def _check_kinds(q: Any, k: Any, v: Any) -> None:
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        kinds = ", ".join(type(t).__name__ for t in (q, k, v))
        raise InputError(f"q, k and v must be tensors. Got {kinds}.")
    if not q.layout is k.layout is v.layout is torch.strided or (
        q.is_nested or k.is_nested or v.is_nested
    ):
        for name, x in zip("qkv", (q, k, v), strict=True):
            check_dense(name, x)


def check_packed(qkv: Tensor) -> Tensor:
    """Packed q, k and v, in autocast's dtype where it is on."""
    check_tensor("qkv", qkv)
    check_dense("qkv", qkv)
    if torch._C._is_any_autocast_enabled():
        (qkv,) = cast_for_autocast(qkv)
    shape = list(qkv.shape)
    if len(shape) != 5:
        raise InputError(
            f"qkv has {len(shape)} dimensions, shape {shape}; expected 5: {QKV_AXES}."
        )
    if shape[2] != 3:
        raise InputError(
            f"qkv has shape {shape}, expected {QKV_AXES}: q, k and v on the third axis."
        )
    if qkv.dtype not in DTYPES:
        name = str(qkv.dtype).removeprefix("torch.")
        raise InputError(f"qkv must be float32, bfloat16, float16 or float64. Got {name}.")
    if shape[4] == 0:
        raise InputError("qkv has head dim 0; it must be at least 1.")
    return qkv


def _tell_of_layout(q: Tensor, k: Tensor) -> None:
    """Warn once where [B, L, H, D] may have been passed for [B, H, L, D].

    More heads than tokens are unusual, and where a projection's result was transposed, as it
    should be, the heads of one token lie together.
    """
    global _told_of_layout
    B, heads, tokens, D = q.shape
    if _told_of_layout or _layout_is_known.get():
        return
    if heads != k.shape[1] or q.stride(1) < q.stride(2):
        return
    _told_of_layout = True
    warnings.warn(
        f"q has shape {[B, heads, tokens, D]}, read as [B, H, L, D]: {heads} heads of {tokens} "
        "tokens. If it is [B, L, H, D], pass q.transpose(1, 2), and k and v likewise. This is "
        "said once.",
        stacklevel=4,
    )


@contextmanager
def known_layout() -> Generator[None]:
    """Inside, q, k and v are [B, H, L, D] for sure, as those of models that are served here."""
    before = _layout_is_known.set(True)
    try:
        yield
    finally:
        _layout_is_known.reset(before)


def check_gain(name: str, gain: Tensor | None, qkv: Tensor) -> None:
    """What a norm multiplies by: a floating number for each place in a head, beside qkv."""
    if gain is None:
        return
    if gain.dtype not in DTYPES:
        raise InputError(f"{name} must be floating. Got {str(gain.dtype).removeprefix('torch.')}.")
    if gain.dim() != 1 or gain.shape[0] != qkv.shape[4]:
        raise InputError(f"{name} has shape {list(gain.shape)}, expected [D={qkv.shape[4]}].")
    if gain.device != qkv.device:
        raise InputError(f"{name} is on {gain.device}, qkv on {qkv.device}. Move it there.")


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As torch does for SDPA: to autocast's dtype, but fp64 is left alone."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    if any(t.dtype not in DTYPES or t.dtype == torch.float64 for t in tensors):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) for t in tensors)


def _explain_rank(q: Tensor, k: Tensor, v: Tensor, axes: Axes) -> None:
    for name, t, expected in zip("qkv", (q, k, v), axes, strict=True):
        if t.dim() != len(expected):
            raise InputError(
                f"{name} has {t.dim()} dimensions, shape {list(t.shape)}; "
                f"expected {len(expected)}: [{', '.join(expected)}]."
            )


def _explain_dtype(q: Tensor, k: Tensor, v: Tensor) -> None:
    names = [str(t.dtype).removeprefix("torch.") for t in (q, k, v)]
    if len(set(names)) > 1:
        raise InputError(
            f"q, k and v must have one dtype. Got {names[0]}, {names[1]} and {names[2]}; "
            "convert them, or run under torch.autocast."
        )
    raise InputError(f"q, k and v must be float32, bfloat16, float16 or float64. Got {names[0]}.")


def _explain_shapes(q: Sequence[int], k: Sequence[int], v: Sequence[int], axes: Axes) -> None:
    known = dict(zip(axes[0], q, strict=True))
    for name, shape, names in (("k", k, axes[1]), ("v", v, axes[2])):
        expected = ", ".join(f"{axis}={known[axis]}" if axis in known else axis for axis in names)
        if any(known.setdefault(a, size) != size for a, size in zip(names, shape, strict=True)):
            others = "q" if name == "k" else "q and k"
            raise InputError(
                f"{name} has shape {list(shape)}, expected [{expected}] to match {others}."
            )
    if q[-1] == 0:
        raise InputError("q and k have head dim 0; it must be at least 1.")


def check_number(name: str, value: Any, advice: str = "") -> float:
    """A finite real number, as a float."""
    plain = plain_number(value)
    if plain is None:
        raise InputError(f"{name} must be a number. Got {describe(value)}.{advice}")
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not -math.inf < number < math.inf:  # torch.compile cannot trace math.isfinite
        raise InputError(f"{name} must be finite. Got {describe(value)}.{advice}")
    return number


def check_range(name: str, value: float, dtype: torch.dtype) -> None:
    """A factor or addend of scores that is a number in their arithmetic: fp64 or fp32."""
    if dtype != torch.float64 and not -LARGEST <= value <= LARGEST:
        raise InputError(
            f"{name}={value:g} is beyond float32, in which {str(dtype).removeprefix('torch.')} "
            f"tensors are computed. Pass a {name} of at most {LARGEST:.1e}, or float64 tensors."
        )


def check_length(length: Any) -> None:
    """What n_i is: "visible", "keys" or a positive number."""
    advice = ' Pass "visible", "keys" or a positive number.'
    if isinstance(length, str):
        if length not in ("visible", "keys"):
            raise InputError(f"length={describe(length)} is unknown.{advice}")
    elif check_number("length", length, advice) <= 0:
        raise InputError(f"length must be positive. Got {length}.{advice}")


def check_division(h: Activation, floor: Any, alpha: float, dtype: torch.dtype) -> float:
    """What ``normalize="sum"`` needs: weights of one sign, a floor of at least 0, and no alpha."""
    if not h.is_nonnegative:
        raise InputError(
            f"normalize='sum' divides by sums of weights, and {h.name!r} may be negative. Take "
            "another activation, or Activation(..., is_nonnegative=True) if yours never is."
        )
    if alpha != 1.0:
        raise InputError(
            f"alpha={alpha:g} is the length's exponent, and normalize='sum' has none. Leave it "
            "out, or pass normalize='length'."
        )
    number = check_number("floor", floor)
    if number < 0:
        raise InputError(f"floor must be at least 0. Got {number:g}.")
    check_range("floor", number, dtype)
    return number


def check_sign(mask: Tensor | None, terms: Terms) -> None:
    """Refuse a float mask with negative numbers where weights are divided by or have logarithms.

    On a GPU values are not read.
    """
    if mask is None or mask.dtype == torch.bool or not (terms.normalize == "sum" or terms.logs):
        return
    if mask.numel() and is_readable(mask) and (least := mask.detach().min().item()) < 0:
        divides = terms.normalize == "sum"
        why = "normalize='sum' divides by sums" if divides else "'logs' takes logarithms"
        raise InputError(
            f"mask has {least:g}, and {why} of weights that it multiplies. Pass numbers from 0 on."
        )


def check_window(window: Any) -> tuple[int | None, int | None]:
    """(left, right), each None or a count of keys."""
    pair: Any = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(pair) != 2 or not all(n is None or _is_count(n) for n in pair):
        raise InputError(
            f"window must be (left, right), integers or None. Got {describe(window)}."
        )
    if any(n is not None and n < 0 for n in pair):
        left, right = pair
        raise InputError(
            f"window reaches {left} to the left, {right} to the right; both must be >= 0."
        )
    left, right = (None if n is None else min(n, FARTHEST) for n in pair)
    return left, right


def _is_count(n: Any) -> bool:
    return isinstance(n, (int, torch.SymInt)) and not isinstance(n, bool)


def check_tensor(name: str, x: Any) -> None:
    """A tensor, of whatever kind."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a tensor. Got {describe(x)}.")


def check_dense(name: str, x: Tensor) -> None:
    """Numbers in rows and columns, none left out."""
    if x.is_nested:
        raise InputError(
            f"{name} is nested, and sequences must be padded or packed. Pad them and pass "
            "key_lengths, or pass their values to flashpoint.attention_varlen with cu_seqlens."
        )
    if x.layout is not torch.strided:
        layout = str(x.layout).removeprefix("torch.")
        raise InputError(f"{name} is {layout}, and must be dense. Pass {name}.to_dense().")


def check_flag(name: str, value: Any) -> None:
    """True or False, and nothing that merely counts as one."""
    if value is not True and value is not False:
        raise InputError(f"{name} must be True or False. Got {describe(value)}.")


def check_count(name: str, value: Any, smallest: int = 0) -> None:
    """An integer from the smallest on."""
    if not _is_count(value) or value < smallest:
        raise InputError(f"{name} must be an integer >= {smallest}. Got {describe(value)}.")


def check_scores(
    name: str,
    x: Tensor,
    shape: tuple[int, ...],
    device: torch.device,
    beside: str = "q",
) -> Tensor:
    """A bias or mask that broadcasts to the scores' shape, with all its axes written out.

    ``beside`` is the tensor, by its name in the call, on whose device it must be.
    """
    check_tensor(name, x)
    if not (x.dtype in DTYPES or (name != "bias" and x.dtype == torch.bool)):
        kinds = "floating" if name == "bias" else "bool or floating"
        raise InputError(f"{name} must be {kinds}. Got {str(x.dtype).removeprefix('torch.')}.")
    if x.device != device:
        raise InputError(f"{name} is on {x.device}, {beside} on {device}. Move it there.")
    rank = len(shape)
    given = (1,) * (rank - x.dim()) + tuple(x.shape)
    if x.dim() > rank or any(a != 1 and a != b for a, b in zip(given, shape, strict=True)):
        axes = SCORES_AXES.get(beside, (*("",) * (rank - 2), "L", "S"))
        named = zip(axes, shape, strict=True)
        expected = ", ".join(f"{axis}={size}" if axis else str(size) for axis, size in named)
        raise InputError(
            f"{name} has shape {list(x.shape)}, which does not broadcast to [{expected}]."
        )
    return x if x.dim() == rank else x.view(given) if x.is_contiguous() else x.reshape(given)


def check_finite(name: str, x: Tensor) -> None:
    """Refuse Inf and NaN in a bias or mask: most are masks made for softmax, to be added."""
    if -math.inf < x.detach().sum().item() < math.inf:
        return  # one Inf or NaN would be in the sum
    wrong = x.isfinite().logical_not().nonzero()
    if len(wrong):
        place: list[int] = wrong[0].tolist()
        added = "flashpoint.scaled_dot_product_attention"
        bool_mask = "To hide keys, pass a bool mask, True where a query may look."
        rule = {
            "bias": "it must be finite. Masks act after h: an added -inf may give NaN, and its "
            f"key counts in n. {added} takes such masks. {bool_mask}",
            "mask": "it must be finite. A float mask multiplies the weights, it is not added as "
            f"{added} does. {bool_mask}",
            "attn_mask": "it is added to the scores: a finite number, or -inf to hide the key.",
        }
        raise InputError(f"{name}{place} is {x[tuple(place)].item()}; {rule[name]}")


def is_readable(x: Tensor) -> bool:
    """True where looking at values costs no synchronization and nobody traces or transforms."""
    return (
        x.is_cpu
        and type(x) in (Tensor, Parameter)
        and not is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._get_tracing_state()
        and not torch._C._are_functorch_transforms_active()
    )


def check_index(name: str, x: Any, size: int, device: torch.device, beside: str = "q") -> None:
    """A vector of ``size`` integers; ``beside`` as for ``check_scores``."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be an integer tensor. Got {describe(x)}.")
    if x.dtype not in (torch.int32, torch.int64) or x.dim() != 1 or x.shape[0] != size:
        dtype = str(x.dtype).removeprefix("torch.")
        raise InputError(
            f"{name} must be int32 or int64 of shape [{size}]. Got {dtype} of shape "
            f"{list(x.shape)}."
        )
    if x.device != device:
        raise InputError(f"{name} is on {x.device}, {beside} on {device}. Move it there.")


def read_key_lengths(key_lengths: Tensor, num_keys: int) -> list[int]:
    """How many keys exist in each sample, checked: from none to all."""
    lengths: list[int] = key_lengths.tolist()
    for b, length in enumerate(lengths):
        if not 0 <= length <= num_keys:
            raise InputError(
                f"key_lengths[{b}] is {length}; it must lie between 0 and the {num_keys} keys."
            )
    return lengths


def read_cu_seqlens(
    q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int
) -> tuple[list[int], list[int]]:
    """Where sequences of a varlen call start and end, checked."""
    ends_q, ends_k = cu_q.tolist(), cu_k.tolist()
    check_cu_seqlens("q", ends_q, q.shape[0], longest_q)
    check_cu_seqlens("k", ends_k, k.shape[0], longest_k)
    return ends_q, ends_k


def check_cu_seqlens(which: str, cu: Sequence[int], total: int, longest: int) -> None:
    """From 0, never falling, to the number of tokens."""
    name = f"cu_seqlens_{which}"
    if cu[0] != 0 or cu[-1] != total:
        raise InputError(
            f"{name} runs from {cu[0]} to {cu[-1]}; it must run from 0 to {total}, "
            f"the tokens of {which}."
        )
    for b, (start, end) in enumerate(itertools.pairwise(cu)):
        if end < start:
            raise InputError(
                f"{name} falls from {start} to {end} at sequence {b}; it must never decrease."
            )
    for b, (start, end) in enumerate(itertools.pairwise(cu)):
        if end - start > longest:
            raise InputError(
                f"max_seqlen_{which} is {longest}, but sequence {b} of {name} has "
                f"{end - start} tokens."
            )
