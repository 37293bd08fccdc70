"""Activations inside kernels: h(s), and ds = dw h'(s), in fp32.

Where h' is zero, ds is zero whatever dw is, as autograd has it: an infinite dw makes no NaN.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from flashpoint.errors import UnsupportedError
from flashpoint.ops import spec
from flashpoint.ops.activation import registered
from flashpoint.ops.gpu import half_activations
from flashpoint.ops.implementations import INTERPRETED

SQRT_HALF = tl.constexpr(0.7071067811865476)
TINY = tl.constexpr(spec.TINY)  # GPUs take a logarithm of less for that of 0
GAUSS_AT_0 = tl.constexpr(0.3989422804014327)  # density of the standard normal distribution


@triton.jit
def relu(s):
    return tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def relu_gradient(s, dw):
    return tl.where(s <= 0.0, 0.0, dw)


@triton.jit
def relu2(s):
    r = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return r * r


@triton.jit
def relu2_gradient(s, dw):
    return tl.where(s <= 0.0, 0.0, 2.0 * s * dw)


@triton.jit
def relu3(s):
    r = relu(s)
    return r * r * r


@triton.jit
def relu3_gradient(s, dw):
    return tl.where(s <= 0.0, 0.0, 3.0 * s * s * dw)


@triton.jit
def relu4(s):
    r = relu(s)
    square = r * r
    return square * square


@triton.jit
def relu4_gradient(s, dw):
    return tl.where(s <= 0.0, 0.0, 4.0 * s * s * s * dw)


@triton.jit
def power_of(x, DEGREE: tl.constexpr):
    """x ** DEGREE, from 1 to 4, by the fewest products."""
    if DEGREE == 1:
        return x
    else:
        square = x * x
        if DEGREE == 2:
            return square
        elif DEGREE == 3:
            return square * x
        else:
            return square * square


@triton.jit
def exp(s):
    return tl.exp(s)


@triton.jit
def exp_gradient(s, dw):
    return dw * tl.exp(s)


@triton.jit
def relu6(s):
    return tl.minimum(relu(s), 6.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def relu6_gradient(s, dw):
    return tl.where((s <= 0.0) | (s >= 6.0), 0.0, dw)


@triton.jit
def gelu(s):
    return 0.5 * s * (1.0 + tl.erf(s * SQRT_HALF))


@triton.jit
def gelu_gradient(s, dw):
    normal = 0.5 * (1.0 + tl.erf(s * SQRT_HALF))
    return dw * (normal + s * GAUSS_AT_0 * tl.exp(-0.5 * s * s))


@triton.jit
def sigmoid(s):
    return 1.0 / (1.0 + tl.exp(-s))


@triton.jit
def sigmoid_gradient(s, dw):
    w = sigmoid(s)
    return dw * w * (1.0 - w)


@triton.jit
def silu(s):
    return s / (1.0 + tl.exp(-s))


@triton.jit
def silu_gradient(s, dw):
    w = sigmoid(s)
    return dw * w * (1.0 + s * (1.0 - w))


@triton.jit
def softplus(s):
    small = tl.exp(-tl.abs(s))
    one_more = 1.0 + small
    # log(1 + x) with the digits of x that 1 + x loses
    log1p = tl.where(one_more == 1.0, small, tl.log(one_more) * (small / (one_more - 1.0)))
    return relu(s) + log1p


@triton.jit
def softplus_gradient(s, dw):
    return dw * sigmoid(s)


@triton.jit
def identity(s):
    return s


@triton.jit
def identity_gradient(s, dw):
    return dw


# Two sigmoids by three special instructions, not four, which are what limits a kernel: of
# a = 1 + exp(-x) and b = 1 + exp(-y), one reciprocal r = 1 / (a b) gives both as r b and r a.
# Below -41.6 the result is 0, so that a b stays in range; NaN stays NaN and touches nobody else.
_TWO_SIGMOIDS = tl.constexpr("""
{
    .reg .f32 a, b, r, x, y;
    .reg .pred p, q;
    mul.f32 a, $2, 0fBFB8AA3B;
    mul.f32 b, $3, 0fBFB8AA3B;
    setp.le.f32 p, a, 0f42700000;
    setp.le.f32 q, b, 0f42700000;
    selp.f32 a, a, 0f00000000, p;
    selp.f32 b, b, 0f00000000, q;
    ex2.approx.ftz.f32 a, a;
    ex2.approx.ftz.f32 b, b;
    add.f32 a, a, 0f3F800000;
    add.f32 b, b, 0f3F800000;
    mul.f32 r, a, b;
    rcp.approx.ftz.f32 r, r;
    mul.f32 b, r, b;
    mul.f32 a, r, a;
    max.NaN.f32 x, $2, 0f00000000;
    max.NaN.f32 y, $3, 0f00000000;
    selp.f32 $0, b, x, p;
    selp.f32 $1, a, y, q;
}
""")


@triton.jit
def sigmoid_by_twos(s):
    return tl.inline_asm_elementwise(_TWO_SIGMOIDS, "=f,=f,f,f", [s], tl.float32, True, 2)


@triton.jit
def silu_by_twos(s):
    return s * tl.inline_asm_elementwise(_TWO_SIGMOIDS, "=f,=f,f,f", [s], tl.float32, True, 2)


@triton.jit
def log_of(s):
    return tl.log(tl.maximum(s, TINY, propagate_nan=tl.PropagateNan.ALL))


_PAIRS = {
    "relu": (relu, relu_gradient),
    "relu2": (relu2, relu2_gradient),
    "relu3": (relu3, relu3_gradient),
    "relu4": (relu4, relu4_gradient),
    "relu6": (relu6, relu6_gradient),
    "gelu": (gelu, gelu_gradient),
    "silu": (silu, silu_gradient),
    "softplus": (softplus, softplus_gradient),
    "sigmoid": (sigmoid, sigmoid_gradient),
    "exp": (exp, exp_gradient),
    "identity": (identity, identity_gradient),
}

DEGREES = {"relu": 1, "relu2": 2, "relu3": 3, "relu4": 4}  # of relu and its powers

_BY_TWOS = {"sigmoid": sigmoid_by_twos, "silu": silu_by_twos}


def in_kernels(key: str, *, rounded: torch.dtype | None) -> tuple[Any, Any]:
    """The pair of functions for an activation's key: h(s) and, of a builtin one, ds(s, dw).

    A user's second function is h'(s); kernels multiply by dw themselves.

    Args:
        key: of the activation.
        rounded: what weights and ds are rounded to, where they serve 16-bit products alone.
    """
    if key in _BY_TWOS and not INTERPRETED and torch.version.cuda is not None:
        return _BY_TWOS[key], _PAIRS[key][1]
    if rounded is not None and key in half_activations.PAIRS[rounded]:
        return half_activations.PAIRS[rounded][key]
    if key in _PAIRS:
        return _PAIRS[key]
    activation = registered(key)
    if activation.triton is None:  # an exported program's; others ``choose`` has refused
        raise UnsupportedError(
            f"activation {activation.name!r} has no kernels in this process. Make it with "
            "Activation(..., triton=(h, derivative)), or move the tensors to the CPU."
        )
    return activation.triton


def is_builtin(key: str) -> bool:
    """True where the second function of the pair takes dw too."""
    return key in _PAIRS
