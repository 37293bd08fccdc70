"""Calls of the C++ kernel: which ones it serves, and what it is handed."""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.ops.check import read_key_lengths
from flashpoint.ops.cpu.native.build import CLASSES, Kernel, find, is_found
from flashpoint.ops.spec import Terms

FEWEST_QUERIES = 8  # they fill the lanes of vectors
QUERIES = 192  # in a piece of work, forward; halved where threads would stand idle
FEWEST_KEYS = 256  # in a piece of work, backward
MOST_BYTES = 2**25  # that the shares of dq may take
PIECES = 4  # for each thread, so that none waits long for another's last one
_UNBOUNDED, _FAR = 2**63 - 1, 2**48
_NOWHERE = (0, 0, 0, 0)
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100
_MOST_PLANS = 1024  # then all are forgotten: shapes that never come back

_MATRICES = ("q", "k", "v", "o", "dq", "dk", "dv", "factors", "offsets", "sums")
_ADDRESSES = ("parts", "existing", "finished")
# ``Call`` of ``call.h``: each matrix is an address and three strides
_CALL = struct.Struct(f"={4 * len(_MATRICES) + len(_ADDRESSES)}q14q6d")
_as_bytes = struct.Struct("=q").pack


class _Plan(NamedTuple):
    """A call of forward but for its addresses.

    Attributes:
        parts: what lies behind those of q, k, v and o.
        shape: of o.
    """

    kernel: Kernel
    parts: tuple[bytes, bytes, bytes, bytes]
    shape: tuple[int, ...]


_plans: dict[Any, _Plan] = {}


def attend_again(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> Tensor | None:
    """The result of a call without key lengths or sums, if one like it was planned.

    It is found by all that ``find_kernel`` and ``attend`` look at, so that neither is asked.
    """
    plan = _plans.get(_identify(q, k, v, terms))
    if plan is None or not is_found(plan.kernel, terms.activation):
        return None
    addresses = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if 0 in addresses or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    o = torch.empty(plan.shape, dtype=torch.float32, device="cpu")
    pairs = zip((*addresses, o.data_ptr()), plan.parts, strict=True)
    _start(plan.kernel, b"".join([_as_bytes(address) + part for address, part in pairs]))
    return o


def _identify(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> tuple[Any, ...]:
    tensors = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride())
    return (*tensors, q.dtype, k.dtype, v.dtype, terms, torch.get_num_threads())


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
    call = _run(kernel, matrices, key_lengths, terms, block)
    if call is not None and key_lengths is None and sums is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        parts = (call[8:32], call[40:64], call[72:96], call[104:])  # an address has 8 bytes
        _plans[_identify(q, k, v, terms)] = _Plan(kernel, parts, tuple(o.shape))
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
) -> bytes | None:
    """Hand tensors, sizes and options over; gives what was, but for where copies were."""
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
    _start(kernel, call)
    return None if kept else call


def _start(kernel: Kernel, call: bytes) -> None:
    if kernel.run(call, kernel.region) != 0:
        raise MemoryError("there is no memory for a thread's part of the attention.")
