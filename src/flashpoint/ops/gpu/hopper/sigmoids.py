"""sigmoid and silu of a tile of scores, and their derivatives: PTX for the kernels for Hopper.

Four sigmoids by five special instructions, not eight, which are what limits a kernel. With
a = 2^t = e^s, sigmoid(s) = a / (1 + a). Of four, with p = (1 + a)(1 + b) and q = (1 + c)(1 + d),
one reciprocal r = 1 / (p q) gives the first as a (1 + b) (r q). t is cut at 30, so that
p q < 2^121: above, sigmoid(s) is 1 to fp32's last bit. Below, a and with it the result keep all
their digits down to 2^-126, then are 0. Inf gives the limits; silu of -Inf is NaN, as it is in
PyTorch. NaN spreads to its group, which is why hidden scores are replaced before.

The derivative of g = sigmoid(s) is g - g g, that of h = s g, silu, is h + (g - g h).
"""

import math
from typing import Any

import triton
import triton.language as tl

FARTHEST = tl.constexpr(-1e30)  # a score whose sigmoid, silu and derivatives are 0
LOG2_E = math.log2(math.e)

_FOUR = """{{
    .reg .f32 a, b, c, d, w, x, y, z, p, q, r;
    min.NaN.f32 a, ${0}, 0f41F00000;
    min.NaN.f32 b, ${1}, 0f41F00000;
    min.NaN.f32 c, ${2}, 0f41F00000;
    min.NaN.f32 d, ${3}, 0f41F00000;
    ex2.approx.ftz.f32 a, a;
    ex2.approx.ftz.f32 b, b;
    ex2.approx.ftz.f32 c, c;
    ex2.approx.ftz.f32 d, d;
    add.f32 p, a, 0f3F800000;
    add.f32 q, c, 0f3F800000;
    fma.rn.f32 w, a, b, a;
    fma.rn.f32 x, a, b, b;
    fma.rn.f32 y, c, d, c;
    fma.rn.f32 z, c, d, d;
    add.f32 p, p, x;
    add.f32 q, q, z;
    mul.f32 r, p, q;
    rcp.approx.ftz.f32 r, r;
    {before}
    mul.f32 q, q, r;
    mul.f32 p, p, r;
    mul.f32 w, w, q;
    mul.f32 x, x, q;
    mul.f32 y, y, p;
    mul.f32 z, z, p;
    {after}
}}
"""
_TIMES_LN_2 = "mul.f32 r, r, 0f3F317218;"
_SIGMOID = "mov.f32 {0}, {g};"
_SIGMOID_SLOPE = "neg.f32 r, {g}; fma.rn.f32 {0}, r, {g}, {g};"
_SIGMOID_BOTH = "neg.f32 r, {g}; fma.rn.f32 {1}, r, {g}, {g}; mov.f32 {0}, {g};"
_SILU = "mul.f32 {0}, {g}, {t};"  # g is times ln 2 before
_SILU_SLOPE = """
    mul.f32 r, {t}, 0f3F317218; mul.f32 r, r, {g}; neg.f32 {0}, r;
    fma.rn.f32 {0}, {0}, {g}, {g}; add.f32 {0}, {0}, r;
"""
_SILU_BOTH = """
    mul.f32 r, {t}, 0f3F317218; mul.f32 r, r, {g}; neg.f32 {1}, r;
    fma.rn.f32 {1}, {1}, {g}, {g}; add.f32 {1}, {1}, r; mov.f32 {0}, r;
"""


def _write_eight(after: str, before: str = "", num_results: int = 1) -> tl.constexpr:
    """PTX for eight neighbours: wgmma has 0, 1, 4, 5 in one row of scores, the rest in another."""
    groups = []
    for group in ((0, 1, 4, 5), (2, 3, 6, 7)):
        inputs = [8 * num_results + i for i in group]
        ends = (
            after.format(*(f"${8 * n + i}" for n in range(num_results)), g=g, t=f"${t}")
            for g, i, t in zip("wxyz", group, inputs, strict=True)
        )
        groups.append(_FOUR.format(*inputs, before=before, after=" ".join(ends)))
    return tl.constexpr("".join(groups))


_SIGMOIDS, _SILUS = _write_eight(_SIGMOID), _write_eight(_SILU, _TIMES_LN_2)
_SIGMOID_SLOPES, _SILU_SLOPES = _write_eight(_SIGMOID_SLOPE), _write_eight(_SILU_SLOPE)
_BOTH_OF_SIGMOID = _write_eight(_SIGMOID_BOTH, num_results=2)
_BOTH_OF_SILU = _write_eight(_SILU_BOTH, num_results=2)
_ONE = tl.constexpr(",".join(["=&f"] * 8 + ["f"] * 8))
_TWO = tl.constexpr(",".join(["=&f"] * 16 + ["f"] * 8))
_RESULTS = tl.constexpr((tl.float32, tl.float32))


@triton.jit
def sigmoid(t):
    """sigmoid(s) of t = log2(e) s."""
    return tl.inline_asm_elementwise(_SIGMOIDS, _ONE, [t], tl.float32, True, 8)


@triton.jit
def silu(t):
    """s sigmoid(s) of t = log2(e) s."""
    return tl.inline_asm_elementwise(_SILUS, _ONE, [t], tl.float32, True, 8)


@triton.jit
def sigmoid_slope(t):
    """Its derivative."""
    return tl.inline_asm_elementwise(_SIGMOID_SLOPES, _ONE, [t], tl.float32, True, 8)


@triton.jit
def silu_slope(t):
    """Its derivative."""
    return tl.inline_asm_elementwise(_SILU_SLOPES, _ONE, [t], tl.float32, True, 8)


@triton.jit
def sigmoid_and_slope(t):
    """Both."""
    return tl.inline_asm_elementwise(_BOTH_OF_SIGMOID, _TWO, [t], _RESULTS, True, 8)


@triton.jit
def silu_and_slope(t):
    """Both."""
    return tl.inline_asm_elementwise(_BOTH_OF_SILU, _TWO, [t], _RESULTS, True, 8)


VALUES = {"sigmoid": sigmoid, "silu": silu}
SLOPES = {"sigmoid": sigmoid_slope, "silu": silu_slope}
BOTH = {"sigmoid": sigmoid_and_slope, "silu": silu_and_slope}


def take_log2(arguments: dict[str, Any]) -> dict[str, Any]:
    """What makes t of scores: scale and bias times log2(e)."""
    names = ("scale", "bias_number")
    return {name: arguments[name] * LOG2_E for name in names} | {"HAS_SCALE": True}
