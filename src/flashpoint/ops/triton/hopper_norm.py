"""Norms over the head dim in the kernels for Hopper: formulas in ``packed_norm``.

A tile of rows in shared memory is normalised where it lies. Each thread reads, changes and writes
its own elements; products, which read by another way, see them behind the fence and the barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared


@gluon.jit
def normalise_buffer(buffer, gain, eps, KIND: gl.constexpr, D: gl.constexpr):
    """Rows [ROWS, BLOCK_D] in shared memory become x-hat, rounded to their dtype."""
    BLOCK_D: gl.constexpr = buffer.shape[1]
    PER_ROW: gl.constexpr = BLOCK_D // 8  # threads, of 16 bytes each
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // PER_ROW, PER_ROW], [4, 1], [1, 0])
    x = buffer.load(LAYOUT).to(gl.float32)
    d = gl.arange(0, BLOCK_D, gl.SliceLayout(0, LAYOUT))
    if KIND == "layer":
        x = x - (gl.sum(x, 1) / D)[:, None]
        if D != BLOCK_D:
            x = gl.where((d < D)[None, :], x, 0.0)
    x = x * gl.rsqrt(gl.sum(x * x, 1) / D + eps)[:, None]
    if gain is not None:
        x = x * gl.load(gain + d, mask=d < D, other=0.0).to(gl.float32)[None, :]
    buffer.store(x.to(buffer.dtype))
    fence_async_shared()

