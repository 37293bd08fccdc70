"""Weights of a tile of scores in the forward kernel for Hopper."""

import math
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashpoint.ops.gpu.activations import relu
from flashpoint.ops.gpu.half_activations import short_softplus_of_log2
from flashpoint.ops.gpu.hopper.sigmoids import FARTHEST, VALUES, take_log2
from flashpoint.ops.gpu.hopper.tiles import clip


def form_of(
    activation: str, rounded: torch.dtype | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """What changes in the arguments of a kernel whose weights come from ``weigh``.

    rounded: what weights are rounded to, if they serve products alone.
    """
    if activation in VALUES:
        return take_log2(arguments) | {"FORM": "log2", "WEIGH": VALUES[activation]}
    if activation == "softplus" and rounded == torch.bfloat16:
        gain = arguments["gain"] * math.log(2.0)
        base_2 = {"FORM": "log2", "WEIGH": short_softplus_of_log2, "gain": gain}
        return take_log2(arguments) | base_2
    return {"FORM": "relu" if activation == "relu" else "plain"}


@gluon.jit
def weigh(scores, limits, step, numbers, options, MASKED: gl.constexpr):
    """h(scale * scores + b) in fp32, zero where row r does not see the key: from limits[r] on.

    FORM: "relu" is left to ``round_weights``; of "log2", scale and b hold a factor log2(e).
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
        HIDDEN: gl.constexpr = FARTHEST if FORM == "log2" else 0.0
        weights = gl.where(keys[None, :] < limits[:, None], weights, HIDDEN)
    if FORM == "log2":
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
