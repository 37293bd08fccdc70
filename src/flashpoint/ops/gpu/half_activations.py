"""Activations whose weights are rounded to 8 or 11 bits at once: short polynomials.

So they are in calls with 16-bit inputs, unless rows' sums or gradients of a bias or a mask are
made of them too.

Accurate exponentials, divisions and error functions take 20 to 40 instructions a score, where the
tensor cores leave time for about 15. Here a score takes one fast exponential and a polynomial.

| function | of | largest relative error |
|---|---|---|
| ``lower_tail`` | Phi(-x), by its logarithm | 3.6e-5 for x up to 8 |
| ``tail_slope`` | 1 - x phi(x) / Phi(-x) | 2.6e-5 of itself and 0.2 |
| ``one_over`` | 1 / (1 + e) | 5.2e-5 |
| ``log1p_over`` | log(1 + e) / e | 1.5e-6 |

Rounding to fp16 costs 4.9e-4, to bf16 3.9e-3. tests/ops/gpu/test_half_activations.py has the
errors of what is made of them.
"""

import torch
import triton
import triton.language as tl

from flashpoint.ops.implementations import INTERPRETED

HAS_PTX = tl.constexpr(not INTERPRETED and torch.version.cuda is not None)
LOG2_E = tl.constexpr(1.4426950408889634)
FAR = tl.constexpr(8.0)  # Phi(-8) is 6e-16: further out all tails are taken for that one


@triton.jit
def fast_exp2(x):
    """2 ** x to 22 bits by one instruction; below 2 ** -126 it is 0."""
    if HAS_PTX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )
    else:
        return tl.exp2(x)


@triton.jit
def lower_tail(x):
    """Phi(-x) for x from 0 to FAR, Phi being the normal distribution's."""
    t = -1.262458454220905e-06
    t = t * x + 4.820329195354134e-05
    t = t * x - 0.0008072482887655497
    t = t * x + 0.007944579236209393
    t = t * x - 0.05263538286089897
    t = t * x - 0.4599568247795105
    t = t * x - 1.1506099700927734
    return fast_exp2(t * x - 1.0000430345535278)


@triton.jit
def tail_slope(x):
    """1 - x phi(x) / Phi(-x): what gelu's derivative is, over ``lower_tail``, below zero."""
    t = -6.532526640512515e-06
    t = t * x + 0.00021111337991897017
    t = t * x - 0.0029016861226409674
    t = t * x + 0.022495083510875702
    t = t * x - 0.11040568351745605
    t = t * x - 0.6369414329528809
    t = t * x - 0.7975550293922424
    return t * x + 0.9999688863754272


@triton.jit
def one_over(e):
    """1 / (1 + e) for e from 0 to 1."""
    t = -0.10448437929153442
    t = t * e + 0.4179377257823944
    t = t * e - 0.7705729603767395
    t = t * e + 0.9534208178520203
    t = t * e - 0.9962757229804993
    return t * e + 0.9999489784240723


@triton.jit
def log1p_over(e):
    """log(1 + e) / e for e from 0 to 1."""
    t = 0.014141014777123928
    t = t * e - 0.06640178710222244
    t = t * e + 0.14922387897968292
    t = t * e - 0.2350386083126068
    t = t * e + 0.33109450340270996
    t = t * e - 0.4998696446418762
    return t * e + 0.9999987483024597


@triton.jit
def positive(s):
    return tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def clipped(s):
    """Its size, up to FAR; NaN stays NaN."""
    return tl.minimum(tl.abs(s), FAR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gelu(s):
    x = clipped(s)
    return positive(s) - x * lower_tail(x)  # s Phi(s) = s - s Phi(-s)


@triton.jit
def gelu_gradient(s, dw):
    x = clipped(s)
    below = lower_tail(x) * tail_slope(x)
    return dw * tl.where(s > 0.0, 1.0 - below, below)


@triton.jit
def softplus(s):
    e = fast_exp2(-LOG2_E * tl.abs(s))
    return positive(s) + e * log1p_over(e)


@triton.jit
def softplus_gradient(s, dw):
    e = fast_exp2(-LOG2_E * tl.abs(s))
    above = one_over(e)
    return dw * tl.where(s > 0.0, above, e * above)


PAIRS = {"gelu": (gelu, gelu_gradient), "softplus": (softplus, softplus_gradient)}
