"""Activations whose weights are rounded to 8 or 11 bits at once: short polynomials.

So they are in calls with 16-bit inputs, unless rows' sums or gradients of a bias or a mask are
made of them too.

Accurate exponentials, divisions and error functions take 20 to 40 instructions a score, where the
tensor cores leave time for about 15. Here a score takes one fast exponential and a polynomial,
which is SHORT for bf16.

| function | of | largest relative error | SHORT |
|---|---|---|---|
| ``lower_tail`` | Phi(-x), by its logarithm | 3.6e-5 for x up to 8 | 2.5e-4 for x up to 5.5 |
| ``tail_slope`` | 1 - x phi(x) / Phi(-x) | 2.6e-5 of itself and 0.2 | 3.0e-4 |
| ``one_over`` | 1 / (1 + e) | 5.2e-5 | 3.0e-4 |
| ``log1p_over`` | log(1 + e) / e | 1.5e-6 | 3.9e-4 |

Rounding to fp16 costs 4.9e-4, to bf16 3.9e-3. tests/ops/gpu/test_half_activations.py has the
errors of what is made of them.
"""

import torch
import triton
import triton.language as tl

from flashpoint.ops.implementations import INTERPRETED

HAS_PTX = tl.constexpr(not INTERPRETED and torch.version.cuda is not None)
LOG2_E = tl.constexpr(1.4426950408889634)
# Phi(-8) is 6e-16, Phi(-5.5) 2e-8: further out all tails are taken for that one
FAR, SHORT_FAR = tl.constexpr(8.0), tl.constexpr(5.5)


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
def lower_tail(x, SHORT: tl.constexpr):
    """Phi(-x) for x from 0 to FAR, Phi being the normal distribution's."""
    if SHORT:
        t = -0.0002332504082005471
        t = t * x + 0.004869761411100626
        t = t * x - 0.044598959386348724
        t = t * x - 0.46968117356300354
        t = t * x - 1.1462607383728027
        return fast_exp2(t * x - 1.000359058380127)
    else:
        t = -1.262458454220905e-06
        t = t * x + 4.820329195354134e-05
        t = t * x - 0.0008072482887655497
        t = t * x + 0.007944579236209393
        t = t * x - 0.05263538286089897
        t = t * x - 0.4599568247795105
        t = t * x - 1.1506099700927734
        return fast_exp2(t * x - 1.0000430345535278)


@triton.jit
def tail_slope(x, SHORT: tl.constexpr):
    """1 - x phi(x) / Phi(-x): what gelu's derivative is, over ``lower_tail``, below zero."""
    if SHORT:
        t = -0.000823373906314373
        t = t * x + 0.013666299171745777
        t = t * x - 0.09302300959825516
        t = t * x - 0.6521613597869873
        t = t * x - 0.7924407720565796
        return t * x + 0.9996445775032043
    else:
        t = -6.532526640512515e-06
        t = t * x + 0.00021111337991897017
        t = t * x - 0.0029016861226409674
        t = t * x + 0.022495083510875702
        t = t * x - 0.11040568351745605
        t = t * x - 0.6369414329528809
        t = t * x - 0.7975550293922424
        return t * x + 0.9999688863754272


@triton.jit
def one_over(e, SHORT: tl.constexpr):
    """1 / (1 + e) for e from 0 to 1."""
    if SHORT:
        t = 0.15224559605121613
        t = t * e - 0.5328590273857117
        t = t * e + 0.865894615650177
        t = t * e - 0.9848352074623108
        return t * e + 0.9997026324272156
    else:
        t = -0.10448437929153442
        t = t * e + 0.4179377257823944
        t = t * e - 0.7705729603767395
        t = t * e + 0.9534208178520203
        t = t * e - 0.9962757229804993
        return t * e + 0.9999489784240723


@triton.jit
def log1p_over(e, SHORT: tl.constexpr):
    """log(1 + e) / e for e from 0 to 1."""
    if SHORT:
        t = -0.07434267550706863
        t = t * e + 0.2540244460105896
        t = t * e - 0.48641401529312134
        return t * e + 0.9996070265769958
    else:
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
def clipped(s, SHORT: tl.constexpr):
    """Its size, up to FAR; NaN stays NaN."""
    return tl.minimum(
        tl.abs(s), SHORT_FAR if SHORT else FAR, propagate_nan=tl.PropagateNan.ALL
    )


@triton.jit
def gelu(s, SHORT: tl.constexpr = False):
    x = clipped(s, SHORT)
    return positive(s) - x * lower_tail(x, SHORT)  # s Phi(s) = s - s Phi(-s)


@triton.jit
def gelu_gradient(s, dw, SHORT: tl.constexpr = False):
    x = clipped(s, SHORT)
    below = lower_tail(x, SHORT) * tail_slope(x, SHORT)
    return dw * tl.where(s > 0.0, 1.0 - below, below)


@triton.jit
def softplus(s, SHORT: tl.constexpr = False):
    e = fast_exp2(-LOG2_E * tl.abs(s))
    return positive(s) + e * log1p_over(e, SHORT)


@triton.jit
def softplus_gradient(s, dw, SHORT: tl.constexpr = False):
    e = fast_exp2(-LOG2_E * tl.abs(s))
    above = one_over(e, SHORT)
    return dw * tl.where(s > 0.0, above, e * above)


@triton.jit
def short_gelu(s):
    return gelu(s, True)


@triton.jit
def short_gelu_gradient(s, dw):
    return gelu_gradient(s, dw, True)


@triton.jit
def short_softplus(s):
    return softplus(s, True)


@triton.jit
def short_softplus_of_log2(t):
    """softplus(s) / log(2) of t = log2(e) s; the polynomial is log1p_over's over log(2)."""
    e = fast_exp2(-tl.abs(t))
    p = -0.10725381225347519
    p = p * e + 0.3664798140525818
    p = p * e - 0.7017470598220825
    p = p * e + 1.44212806224823
    return positive(t) + e * p


@triton.jit
def short_softplus_gradient(s, dw):
    return softplus_gradient(s, dw, True)


# by the dtype that weights and ds are rounded to
PAIRS = {
    torch.float16: {
        "gelu": (gelu, gelu_gradient),
        "softplus": (softplus, softplus_gradient),
    },
    torch.bfloat16: {
        "gelu": (short_gelu, short_gelu_gradient),
        "softplus": (short_softplus, short_softplus_gradient),
    },
}
