"""Weights of a tile of scores in the forward kernel for Hopper; sigmoids four at a time."""

import math
from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashpoint.ops.gpu.activations import relu
from flashpoint.ops.gpu.hopper.tiles import clip

FARTHEST = gl.constexpr(-1e30)  # a score whose sigmoid and silu are 0

# Four sigmoids by five special instructions, not eight, which are what limits a kernel. With
# a = 2^t = e^s, sigmoid(s) = a / (1 + a). Of four, with p = (1 + a)(1 + b) and q = (1 + c)(1 + d),
# one reciprocal r = 1 / (p q) gives the first as a (1 + b) (r q). t is cut at 30, so that
# p q < 2^121: above, sigmoid(s) is 1 to fp32's last bit. Below, a and with it the result keep all
# their digits down to 2^-126, then are 0. Inf gives the limits; silu of -Inf is NaN, as it is in
# PyTorch. NaN spreads to its group, which is why hidden scores are replaced before.
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
    {times_ln_2}
    mul.f32 q, q, r;
    mul.f32 p, p, r;
    mul.f32 ${4}, w, q;
    mul.f32 ${5}, x, q;
    mul.f32 ${6}, y, p;
    mul.f32 ${7}, z, p;
    {times_t}
}}
"""
_TIMES_LN_2 = "mul.f32 r, r, 0f3F317218;"


def _write_eight(is_silu: bool) -> tl.constexpr:
    """PTX for eight neighbours: wgmma has 0, 1, 4, 5 in one row of scores, the rest in another."""
    groups = []
    for group in ((0, 1, 4, 5), (2, 3, 6, 7)):
        inputs = [8 + i for i in group]
        times_t = "".join(f"mul.f32 ${i}, ${i}, ${8 + i}; " for i in group if is_silu)
        times_ln_2 = _TIMES_LN_2 if is_silu else ""
        groups.append(_FOUR.format(*inputs, *group, times_ln_2=times_ln_2, times_t=times_t))
    return tl.constexpr("".join(groups))


_EIGHT_SIGMOIDS, _EIGHT_SILUS = _write_eight(False), _write_eight(True)
_EIGHT = tl.constexpr(",".join(["=&f"] * 8 + ["f"] * 8))


@triton.jit
def sigmoid_by_fours(t):
    """sigmoid(s) of t = log2(e) s."""
    return tl.inline_asm_elementwise(_EIGHT_SIGMOIDS, _EIGHT, [t], tl.float32, True, 8)


@triton.jit
def silu_by_fours(t):
    """s sigmoid(s) of t = log2(e) s."""
    return tl.inline_asm_elementwise(_EIGHT_SILUS, _EIGHT, [t], tl.float32, True, 8)


BY_FOURS = {"sigmoid": sigmoid_by_fours, "silu": silu_by_fours}


def form_of(activation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What changes in the arguments of a kernel whose weights come from ``weigh``."""
    if activation not in BY_FOURS:
        return {"FORM": "relu" if activation == "relu" else "plain"}
    return {
        "FORM": "fours",
        "WEIGH": BY_FOURS[activation],
        "HAS_SCALE": True,
        "scale": arguments["scale"] * math.log2(math.e),
        "bias_number": arguments["bias_number"] * math.log2(math.e),
    }


@gluon.jit
def weigh(scores, limits, step, numbers, options, MASKED: gl.constexpr):
    """h(scale * scores + b) in fp32, zero where row r does not see the key: from limits[r] on.

    FORM: "relu" is left to ``round_weights``; of "fours", scale and b hold a factor log2(e).
    """
    FORM: gl.constexpr = options.FORM
    WEIGH: gl.constexpr = options.WEIGH
    if options.HAS_SCALE:
        scores *= numbers.scale
    if options.HAS_BIAS_NUMBER:
        scores += numbers.bias_number
    weights = scores
    if FORM == "plain":
        weights = WEIGH(scores)
    if MASKED:
        BLOCK_KEYS: gl.constexpr = weights.shape[1]
        layout: gl.constexpr = gl.SliceLayout(0, weights.type.layout)
        first = gl.full([BLOCK_KEYS], step * BLOCK_KEYS, gl.int32, layout)
        keys = gl.arange(0, BLOCK_KEYS, layout)
        # An opaque addition: the compiler would keep one loop variable per key.
        keys = gl.inline_asm_elementwise(
            "add.s32 $0, $1, $2;", "=r,r,r", [keys, first], gl.int32, True, 1
        )
        HIDDEN: gl.constexpr = FARTHEST if FORM == "fours" else 0.0
        weights = gl.where(keys[None, :] < limits[:, None], weights, HIDDEN)
    if FORM == "fours":
        weights = WEIGH(weights)
    if options.SHRINKS:
        weights *= numbers.shrink
    return weights


@gluon.jit
def add_sums(sums, weights, options):
    """Add weights [ROWS, KEYS] to sums [ROWS, 8]: each thread those that it has.

    A product's layout gives a thread two of every eight neighbours, so that nothing is exchanged
    before the end.
    """
    if options.HAS_SUMS:
        if options.FORM == "relu":
            weights = relu(weights)
        parts = gl.sum(weights.reshape([weights.shape[0], weights.shape[1] // 8, 8]), 1)
        sums += gl.convert_layout(parts, sums.type.layout, assert_trivial=True)
    return sums


@gluon.jit
def round_weights(weights, FORM: gl.constexpr, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """As DTYPE, the left operand of a product."""
    weights = clip(weights, DTYPE) if FORM == "relu" else weights.to(DTYPE)
    return gl.convert_layout(weights, LAYOUT, assert_trivial=True)
