"""r log r of r = relu(s), for the entropy of relu attention, and its slope."""

import triton
import triton.language as tl

TINY = tl.constexpr(2.0**-100)  # under it the logarithm stays: GPUs take log of less for log of 0


@triton.jit
def r_log_r(s):
    """relu(s) log relu(s), which is 0 at 0."""
    return tl.where(s <= 0.0, 0.0, s * _log(s))


@triton.jit
def r_log_r_slope(s):
    """Its derivative: 0 up to 0, as relu's."""
    return tl.where(s <= 0.0, 0.0, 1.0 + _log(s))


@triton.jit
def _log(s):
    return tl.log(tl.maximum(s, TINY, propagate_nan=tl.PropagateNan.ALL))
