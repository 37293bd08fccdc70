"""Norms over the head dim in the kernels for Hopper: formulas in ``packed_norm``.

Tiles are [ROWS, BLOCK_D] with zeros from D on.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared


@gluon.jit
def take_mean(x, D: gl.constexpr):
    """P x of "layer": the mean of each row over D subtracted, zeros beyond kept."""
    x = x - (gl.sum(x, 1) / D)[:, None]
    if D != x.shape[1]:
        d = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
        x = gl.where((d < D)[None, :], x, 0.0)
    return x


@gluon.jit
def unit_rows(x, exists, eps, KIND: gl.constexpr, D: gl.constexpr):
    """u and r of a tile in fp32; ``exists`` [ROWS] tells the rows there are."""
    if KIND == "layer":
        x = take_mean(x, D)
    r = gl.where(exists, gl.rsqrt(gl.sum(x * x, 1) / D + eps), 0.0)
    return x * r[:, None], r


@gluon.jit
def times_gain(x, gain, D: gl.constexpr):
    """x with its columns times the gain, if there is one."""
    if gain is not None:
        d = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
        x = x * gl.load(gain + d, mask=d < D, other=0.0).to(gl.float32)[None, :]
    return x


@gluon.jit
def normalise_buffer(buffer, num_rows, gain, eps, KIND: gl.constexpr, D: gl.constexpr):
    """The first num_rows of a tile in shared memory become x-hat, rounded to their dtype.

    Each thread reads, changes and writes its own elements; products, which read by another way,
    see them behind the fence and the barrier.
    """
    PER_ROW: gl.constexpr = buffer.shape[1] // 8  # threads, of 16 bytes each
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // PER_ROW, PER_ROW], [4, 1], [1, 0])
    exists = gl.arange(0, buffer.shape[0], gl.SliceLayout(1, LAYOUT)) < num_rows
    u, _ = unit_rows(buffer.load(LAYOUT).to(gl.float32), exists, eps, KIND, D)
    buffer.store(times_gain(u, gain, D).to(buffer.dtype))
    fence_async_shared()


@gluon.jit
def normalise_gradient(dy, x, exists, gain, eps, KIND: gl.constexpr, D: gl.constexpr):
    """dx of a tile in fp32, and its share of dgain [BLOCK_D]; dy is the gradient of x-hat."""
    u, r = unit_rows(x.to(gl.float32), exists, eps, KIND, D)
    g = times_gain(dy, gain, D)
    dx = g - u * (gl.sum(g * u, 1) / D)[:, None]
    if KIND == "layer":
        dx = take_mean(dx, D)
    return dx * r[:, None], gl.sum(dy * u, 0)
