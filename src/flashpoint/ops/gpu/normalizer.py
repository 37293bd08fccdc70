"""The normalizer gain * n_i ** -alpha on the GPU: how many keys a query sees, and its power.

Kernels make it themselves: n_i follows from a query's position, the window and the sequence's end.
Only a mask of booleans has to be counted before (``portable/masks.py``).
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.activations import log_of
from flashpoint.ops.normalizer import normalizer

if TYPE_CHECKING:
    from flashpoint.ops.gpu.call import Call

POWERS = {1.0: "inverse", 0.5: "root", -1.0: "times"}  # exponents that kernels know by a word
LARGEST_ALPHA = 1024.0  # 2 ** -alpha is 0 in fp32 far before it


class Normalizer(NamedTuple):
    """How kernels get gain * n_i ** -alpha; floor * n_i where they divide by rows' sums.

    Attributes:
        word: "constant": the gain is all of it. "given": ``values`` are. "visible" and "keys":
            kernels count these.
        values: [B or 1, H or 1, Lq], or None.
        power: how kernels make n_i ** -alpha: "none", "inverse", "root", "times" n_i, or "any" by
            alpha.
        alpha: None where the power's word says it.
    """

    word: str
    gain: float
    values: Tensor | None = None
    power: str = "none"
    alpha: float | None = None

    @classmethod
    def of(cls, call: "Call") -> "Normalizer":
        """That of a call."""
        terms, gain = call.terms, gain_of(call)
        if terms.alpha == 0.0:
            return cls("constant", gain)
        if counts_mask(call):
            assert call.normalizers is not None
            return cls("given", 1.0, call.normalizers)
        counts_keys = terms.length == "keys" and not call.is_varlen
        window = terms.left is not None or terms.right is not None
        if counts_keys or not (window or call.ends_early):
            return cls("constant", gain * normalizer(call.num_keys, terms.alpha))
        return cls(terms.length, gain, None, *power_of(terms.alpha))


def gain_of(call: "Call") -> float:
    """What stands before n_i ** -alpha, with a scale that moved behind h."""
    terms = call.terms
    return terms.floor / call.moved if terms.normalize == "sum" else terms.gain * call.moved


def counts_mask(call: "Call") -> bool:
    """True where n_i depends on the values of a mask."""
    has_bool_mask = call.mask is not None and call.mask.dtype == torch.uint8
    return has_bool_mask and call.terms.length != "keys" and call.terms.alpha != 0.0


def power_of(alpha: float) -> tuple[str, float | None]:
    """The kernels' word for n ** -alpha, and alpha where the word does not say it."""
    if alpha in POWERS:
        return POWERS[alpha], None
    return "any", min(max(alpha, -LARGEST_ALPHA), LARGEST_ALPHA)


@triton.jit
def over_power(x, n, alpha, POWER: tl.constexpr):
    """x * n ** -alpha for n >= 1; POWER: "inverse" is alpha 1, "root" 0.5, "times" -1.

    "any" reads alpha.
    """
    if POWER == "inverse":
        return x / n
    elif POWER == "times":
        return x * n
    elif POWER == "root":
        return x * tl.rsqrt(n)
    else:
        # by log2(n) = whole + rest and alpha = near + far: the product of the large parts is exact
        bits = n.to(tl.int32, bitcast=True)
        whole = ((bits >> 23) - 127).to(tl.float32)
        rest = tl.log2((bits & 0x7FFFFF | 0x3F800000).to(tl.float32, bitcast=True))
        near = tl.floor(alpha * 256.0) / 256.0
        return x * tl.exp2(-near * whole) * tl.exp2(-(alpha * rest + (alpha - near) * whole))


@triton.jit
def approximate(FUNCTION: tl.constexpr, x):
    """A special function by its one instruction."""
    instruction: tl.constexpr = FUNCTION + ".approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(instruction, "=r,r", [x], tl.float32, False, 1)


@triton.jit
def over_power_roughly(n, alpha, POWER: tl.constexpr):
    """n ** -alpha as ``over_power`` explains it, with digits for 16 bits."""
    if POWER == "inverse":
        return approximate("rcp", n)
    elif POWER == "times":
        return n
    elif POWER == "root":
        return approximate("rsqrt", n)
    else:
        return approximate("ex2", -alpha * approximate("lg2", n))


@triton.jit
def over_sum(total, floor):
    """1 / (total + floor), and 0 for a row of zeros without a floor."""
    divisor = total + floor
    return tl.where(divisor == 0.0, 0.0, 1.0 / divisor)


@triton.jit
def load_of_rows(x, strides, b, h, rows, Lq):
    """Some queries' numbers out of [B or 1, H or 1, Lq], zeros behind the last."""
    at = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(h, tl.int64) * strides[1]
    return tl.load(at + rows.to(tl.int64) * strides[2], mask=rows < Lq, other=0.0)


@triton.jit
def add_of_sums(dw, w, offsets, slopes, strides, b, h, queries, Lq):
    """dw and what its queries' sums bring, if there are any; queries are 2-d, along their axis.

    w: before it is divided. ``portable/backward_rows.py`` has the formulas.
    """
    if offsets is not None:
        dw += load_of_rows(offsets, strides, b, h, queries, Lq)
    if slopes is not None:
        dw += load_of_rows(slopes, strides, b, h, queries, Lq) * log_of(w)
    return dw


@triton.jit
def normalizer_of(
    rows, gain, alpha, normalizers, strides, b, h, shift, Lq, existing, num_keys, left, right,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr,
):
    """gain * n_i ** -alpha of some queries: given, or from n_i, or the same gain for all."""
    factor = tl.zeros_like(rows).to(tl.float32) + gain
    if NORMALIZER == "given":
        factor = load_of_rows(normalizers, strides, b, h, rows, Lq)
    elif NORMALIZER == "visible":
        first, last = tl.zeros_like(rows), tl.zeros_like(rows) + existing
        if left is not None:
            first = tl.maximum(rows + shift - left, 0)
        if right is not None:
            last = tl.minimum(rows + shift + right + 1, existing)
        factor = over_power(factor, tl.maximum(last - first, 1).to(tl.float32), alpha, POWER)
    elif NORMALIZER == "keys":  # of a varlen sequence
        factor = over_power(factor, tl.maximum(num_keys, 1).to(tl.float32), alpha, POWER)
    return factor


def broadcast_strides(x: Tensor | None) -> tuple[int, ...]:
    """Strides with zeros where a size of one is repeated."""
    if x is None:
        return ()
    return tuple(0 if n == 1 else stride for n, stride in zip(x.shape, x.stride(), strict=True))
