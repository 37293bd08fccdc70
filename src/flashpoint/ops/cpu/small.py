"""Small calls on the CPU by NumPy, whose calls cost less than PyTorch's."""

import numpy as np
import torch
from torch import Tensor

from flashpoint.ops.cpu.activations import on_tiles
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.spec import Terms

_ZERO = np.zeros((), np.float32)  # a number of Python's would be made an array every time


@np.errstate(all="ignore")  # Inf and NaN pass in silence, as in PyTorch
def attend_small(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor:
    """The whole call as one tile: no bias, every key seen."""
    rows, keys, values = (x.detach().numpy() for x in (q, k, v))
    samples, q_heads, num_queries, head_dim = rows.shape
    _, kv_heads, num_keys, _ = keys.shape
    scale, moved = terms.split_scale(head_dim, has_bias=False)
    if q_heads != kv_heads:
        rows = rows.reshape(samples, kv_heads, -1, head_dim)
    s = np.matmul(rows, keys.swapaxes(2, 3))
    if scale != 1.0:
        s *= scale
    if terms.activation == "relu":
        w = np.maximum(s, _ZERO, out=s)
    else:
        w = on_tiles(terms.activation).weigh_(torch.from_numpy(s)).numpy()
    o = np.matmul(w, values)
    o *= terms.gain * moved * normalizer(num_keys, terms.alpha)
    if q_heads != kv_heads:
        o = o.reshape(samples, q_heads, num_queries, -1)
    return torch.from_numpy(np.ascontiguousarray(o))
