"""Norms over the head dim inside kernels, and their gradient, in fp32.

With u = r P x, where P takes the mean away ("layer") or nothing ("rms") and r is one over the
root of the mean square of P x plus eps:

    x-hat = gain * u      dgain = sum of dx-hat * u
    dx = r P (g - u mean(g * u)), g = gain * dx-hat

Tiles are [ROWS, BLOCK_D] with zeros from D on. Rows that do not exist are zeros.
"""

import triton
import triton.language as tl


@triton.jit
def load_gain(gain, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The gain as [1, BLOCK_D] in fp32, or 1.0 where there is none."""
    if gain is None:
        return 1.0
    else:
        d = tl.arange(0, BLOCK_D)
        return tl.load(gain + d, mask=d < D, other=0.0).to(tl.float32)[None, :]


@triton.jit
def take_mean(x, total, D: tl.constexpr):
    """P x of "layer", from the sum of each row: its mean over D subtracted, zeros beyond kept."""
    x -= total[:, None] / D
    if x.shape[1] != D:
        x = tl.where((tl.arange(0, x.shape[1]) < D)[None, :], x, 0.0)
    return x


@triton.jit
def unit_rows(x, exists, eps, KIND: tl.constexpr, D: tl.constexpr):
    """u, r and means of a tile; ``exists`` [ROWS] tells the rows there are."""
    is_exact: tl.constexpr = x.dtype == tl.float32
    x = x.to(tl.float32)
    total = tl.sum(x, 1)
    if KIND == "layer":
        x = take_mean(x, total, D)
    square = tl.sum(x * x, 1) / D + eps
    r = 1.0 / tl.sqrt_rn(square) if is_exact else tl.rsqrt(square)
    r = tl.where(exists, r, 0.0)
    return x * r[:, None], r, total / D


@triton.jit
def normalize(x, exists, gain, eps, KIND: tl.constexpr, D: tl.constexpr):
    """x-hat of a tile, rounded to its dtype."""
    if KIND == "none":
        return x
    else:
        u, _, _ = unit_rows(x, exists, eps, KIND, D)
        return (u * load_gain(gain, D, x.shape[1])).to(x.dtype)


@triton.jit
def normalize_gradient(dy, x, exists, gain, eps, KIND: tl.constexpr, D: tl.constexpr):
    """dx of a tile in fp32, and its share of dgain [BLOCK_D]; dy is the gradient of x-hat."""
    if KIND == "none":
        return dy, tl.zeros([dy.shape[1]], tl.float32)
    else:
        u, r, _ = unit_rows(x, exists, eps, KIND, D)
        g = dy * load_gain(gain, D, x.shape[1])
        dx = g - u * (tl.sum(g * u, 1) / D)[:, None]
        if KIND == "layer":
            dx = take_mean(dx, tl.sum(dx, 1), D)
        return dx * r[:, None], tl.sum(dy * u, 0)
