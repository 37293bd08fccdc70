"""Calls of the C++ kernel: which ones it serves, and what it is handed."""

import struct
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from flashpoint.ops.check import read_key_lengths
from flashpoint.ops.cpu.native.build import CLASSES, Kernel, find
from flashpoint.ops.spec import Terms

FEWEST_QUERIES = 8  # they fill the lanes of vectors
QUERIES = 192  # in a piece of work, forward; halved where threads would stand idle
FEWEST_KEYS = 256  # in a piece of work, backward
MOST_BYTES = 2**25  # that the shares of dq may take
PIECES = 4  # for each thread, so that none waits long for another's last one
_UNBOUNDED, _FAR = 2**63 - 1, 2**48
_NOWHERE = (0, 0, 0, 0)
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100

_MATRICES = ("q", "k", "v", "o", "dq", "dk", "dv", "factors", "offsets", "sums")
_ADDRESSES = ("parts", "existing", "finished")
# ``Call`` of ``call.h``: each matrix is an address and three strides
_CALL = struct.Struct(f"={4 * len(_MATRICES) + len(_ADDRESSES)}q14q6d")


def find_kernel(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, terms: Terms
) -> Kernel | None:
    """The kernel for a call, or None: for those it does not serve, and where none can be had."""
    if bias is not None or mask is not None or terms.activation not in CLASSES or terms.logs:
        return None
    if not q.dtype == k.dtype == v.dtype == torch.float32 or not _agree(q, k, v):
        return None
    scale = 1.0 if terms.scale is None else abs(terms.scale)
    if q.shape[2] < FEWEST_QUERIES or not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
        return None
    found = find(terms.activation)
    return found if isinstance(found, Kernel) else None


def _agree(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether shapes fit: who calls PyTorch's operator itself has not been asked yet."""
    batch, q_heads, _, dim = q.shape
    return (
        k.shape[:3] == v.shape[:3]
        and k.shape[3] == dim
        and k.shape[0] == batch
        and (q_heads % k.shape[1] == 0)
    )


def attend(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    terms: Terms,
    sums: Tensor | None = None,
) -> Tensor:
    """[B, Hq, Lq, Dv]; rows' sums of weights go to ``sums``, [B, Hq, Lq], where that is given."""
    o = q.new_empty(*q.shape[:3], v.shape[3])
    pieces, block = PIECES * torch.get_num_threads(), QUERIES
    while block > QUERIES // 4 and q.shape[0] * q.shape[1] * -(-q.shape[2] // block) < pieces:
        block //= 2
    matrices = {"q": q, "k": k, "v": v, "o": o}
    if sums is not None:
        matrices["sums"] = sums.unsqueeze(-1)
    _run(kernel, matrices, key_lengths, terms, block)
    return o


def differentiate(
    kernel: Kernel,
    do: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    key_lengths: Tensor | None,
    terms: Terms,
    factors: Tensor | None,
    offsets: Tensor | None,
) -> None:
    """Write dq, dk and dv.

    With sums, [B, Hq, Lq, 1] each or less: factors of do where rows are divided by their sums, and
    what is added to the gradient of weights.
    """
    q, k, v = inputs
    do = do.to(torch.float32).expand(*q.shape[:3], v.shape[3])
    matrices = {"q": q, "k": k, "v": v, "o": do}
    matrices |= zip(("dq", "dk", "dv"), grads, strict=True)
    for name, rows in (("factors", factors), ("offsets", offsets)):
        if rows is not None:
            matrices[name] = rows.to(torch.float32).expand(*q.shape[:3], 1)
    heads, keys, threads = k.shape[0] * k.shape[1], k.shape[2], torch.get_num_threads()
    # Each share of the keys costs a dq of its own: one where threads have heads enough.
    wanted = -(-PIECES * threads // heads) if threads > 1 else 1
    block = -(-keys // max(1, min(wanted, keys // FEWEST_KEYS, MOST_BYTES // q.nbytes)))
    shares = -(-keys // block)
    beside = {}
    if shares > 1:
        beside["parts"] = q.new_empty(shares, *q.shape)
        beside["finished"] = torch.zeros(heads, dtype=torch.int64, device="cpu")
    _run(kernel, matrices, key_lengths, terms, block, beside)


def _run(
    kernel: Kernel,
    matrices: Mapping[str, Tensor],
    key_lengths: Tensor | None,
    terms: Terms,
    block: int,
    beside: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Hand tensors, sizes and options over."""
    samples, q_heads, queries, dim = matrices["q"].shape
    _, kv_heads, keys, value_dim = matrices["v"].shape
    if key_lengths is not None:
        lengths = torch.tensor(read_key_lengths(key_lengths, keys), device="cpu")
        beside = {**beside, "existing": lengths}
    scale, moved = terms.split_scale(dim, has_bias=terms.bias != 0.0)
    numbers: list[int] = []
    kept: list[Tensor] = []  # copies, which must outlive the call
    for name in _MATRICES:
        x = matrices.get(name)
        if x is None:
            numbers += _NOWHERE
            continue
        strides = x.stride()
        if (strides[3] != 1 and x.shape[3] > 1) or x.is_neg() or x._is_zerotensor():
            x = x.new_zeros(x.shape) if x._is_zerotensor() else x.resolve_neg().contiguous()
            kept.append(x)
            strides = x.stride()
        numbers += (x.data_ptr(), *strides[:3])
    numbers += [beside[name].data_ptr() if name in beside else 0 for name in _ADDRESSES]
    left, right = (_UNBOUNDED if x is None else min(x, _FAR) for x in (terms.left, terms.right))
    call = _CALL.pack(
        *numbers,
        *(samples, q_heads, kv_heads, queries, keys, dim, value_dim),
        *(left, right, block, torch.get_num_threads(), "dq" in matrices),
        *("sums" in matrices and terms.normalize == "sum", terms.length == "keys"),
        *(scale, terms.bias, moved, terms.gain * moved, terms.alpha, terms.floor),
    )
    if kernel.run(call, kernel.region) != 0:
        raise MemoryError("there is no memory for a thread's part of the attention.")
