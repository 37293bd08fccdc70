"""Norms over the head dim in the kernels for Hopper: formulas in ``portable/qk_norm.py``.

Tiles are [ROWS, BLOCK_D] with zeros from D on.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

MOST_COLUMNS = gl.constexpr(16)  # of a row in one thread: two loads without conflicts of banks


@gluon.jit
def center(x, mean, KIND: gl.constexpr, D: gl.constexpr):
    """P x: the means [ROWS] of "layer" subtracted, zeros beyond D kept."""
    if KIND == "layer":
        x = x - mean[:, None]
        if D != x.shape[1]:
            d = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
            x = gl.where((d < D)[None, :], x, 0.0)
    return x


@gluon.jit
def measure(x, exists, eps, KIND: gl.constexpr, D: gl.constexpr):
    """Means and r [ROWS] of a tile in fp32; ``exists`` tells the rows there are."""
    mean = gl.sum(x, 1) / D
    return mean, gl.where(exists, root_of(center(x, mean, KIND, D), eps, D), 0.0)


@gluon.jit
def root_of(centered, eps, D: gl.constexpr):
    """r [ROWS] of P x."""
    return gl.rsqrt(gl.sum(centered * centered, 1) / D + eps)


@gluon.jit
def times_gain(x, gain, D: gl.constexpr, other_gain=None):
    """x with its columns times the gain, and another one, if there are any."""
    if gain is None and other_gain is None:
        return x
    else:
        d = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
        factor = gl.full([x.shape[1]], 1.0, gl.float32, d.type.layout)
        if gain is not None:
            factor *= gl.load(gain + d, mask=d < D, other=0.0).to(gl.float32)
        if other_gain is not None:
            factor *= gl.load(other_gain + d, mask=d < D, other=0.0).to(gl.float32)
        return x * factor[None, :]


@gluon.jit
def normalize_rows(
    rows, exists, gain, eps, KIND: gl.constexpr, D: gl.constexpr, other_gain=None
):
    """x-hat of a tile in registers, times another gain if there is one, rounded to its dtype."""
    x = rows.to(gl.float32)
    mean, r = measure(x, exists, eps, KIND, D)
    x = times_gain(center(x, mean, KIND, D) * r[:, None], gain, D, other_gain)
    return x.to(rows.dtype)


@gluon.jit
def normalize_buffer(
    buffer, num_rows, gain, eps, KIND: gl.constexpr, D: gl.constexpr, other_gain=None
):
    """The first num_rows of a tile in shared memory become what ``normalize_rows`` gives.

    Each thread reads, changes and writes its own elements; products, which read by another way,
    see them behind the fence and the barrier.
    """
    EACH: gl.constexpr = buffer.shape[0] * buffer.shape[1] // 128  # elements of a thread
    COLUMNS: gl.constexpr = EACH if EACH < MOST_COLUMNS else MOST_COLUMNS
    PER_ROW: gl.constexpr = buffer.shape[1] // COLUMNS  # threads
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, COLUMNS], [32 // PER_ROW, PER_ROW], [4, 1], [1, 0]
    )
    exists = gl.arange(0, buffer.shape[0], gl.SliceLayout(1, LAYOUT)) < num_rows
    rows = buffer.load(LAYOUT)
    buffer.store(normalize_rows(rows, exists, gain, eps, KIND, D, other_gain))
    fence_async_shared()


@gluon.jit
def make_shares(NUM: gl.constexpr, ROWS: gl.constexpr, BLOCK_D: gl.constexpr):
    """Shared memory for NUM sums of ``add_pairs``.

    Eight neighbours of a row are in four threads, and eight rows in as many times four: swizzled
    by that, no two threads of a half warp meet in a bank.
    """
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    return gl.allocate_shared_memory(gl.float32, [NUM, ROWS // 2, BLOCK_D], LAYOUT)


@gluon.jit
def add_pairs(x):
    """[ROWS, BLOCK_D] of a product's layout summed over the two rows that a thread holds."""
    pairs = gl.sum(x.reshape([x.shape[0] // 16, 2, 8, x.shape[1]]), 1)
    return pairs.reshape([x.shape[0] // 2, x.shape[1]])


@gluon.jit
def normalize_gradient(dy, tail, x, mean, r, gain, KIND: gl.constexpr, D: gl.constexpr):
    """dx of a tile in fp32, and dy u, whose sum over the rows times the tail is dgain.

    The gradient of x-hat is tail dy. u has mean zero, so P of "layer" only concerns g: both sums
    over a row can run at once. Factors are gathered by column or by row before they meet dy or u.
    """
    u = center(x.to(gl.float32), mean, KIND, D) * r[:, None]
    if gain is None:
        g = dy * tail
    else:
        d = gl.arange(0, x.shape[1], gl.SliceLayout(0, dy.type.layout))
        g = dy * (gl.load(gain + d, mask=d < D, other=0.0).to(gl.float32) * tail)[None, :]
    away = u * (gl.sum(g * u, 1) * r / D)[:, None]
    if KIND == "layer":
        away += (gl.sum(g, 1) * r / D)[:, None]
    return g * r[:, None] - away, dy * u
