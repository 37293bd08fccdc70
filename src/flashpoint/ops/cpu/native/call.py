"""Calls of the C++ kernel: which ones it serves, and what it is handed."""

import itertools
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.ops.check import read_key_lengths
from flashpoint.ops.cpu.native.build import CLASSES, Kernel, find, is_found
from flashpoint.ops.spec import Terms

QUERIES = 192  # in a piece of work, forward; halved where threads would stand idle
FEW = 2  # queries that leave too many lanes of vectors empty, so that head dims fill these
FEWEST_KEYS = 256  # in a piece of work, backward
MOST_BYTES = 2**25  # that the shares of dq may take
PIECES = 4  # for each thread, so that none waits long for another's last one
_UNBOUNDED, _FAR = 2**63 - 1, 2**48
_KINDS = ("forward", "few", "backward", "of bias", "of mask")  # in the order of ``Kind``
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100
_MOST_PLANS = 1024  # then all are forgotten: shapes that never come back

# ``Call`` of ``call.h``: of each tensor its address and so many strides
_TENSORS = {
    **dict.fromkeys(("q", "k", "v", "o", "sums", "g", "dsums", "dq", "dk", "dv"), 3),
    **dict.fromkeys(("bias", "mask", "dscores"), 4),
    **dict.fromkeys(("parts", "existing", "finished"), 0),
}
_CALL = struct.Struct(f"={sum(_TENSORS.values()) + len(_TENSORS)}q15q6d")
_ADDRESS = 8  # bytes of an address, and of a stride
_PLACES = dict(
    zip(
        _TENSORS,
        itertools.accumulate(_TENSORS.values(), lambda at, n: at + _ADDRESS * (1 + n), initial=0),
        strict=False,
    )
)
"""Of each tensor's address in a call, in bytes."""


class _Plan(NamedTuple):
    """A call but for its addresses.

    Attributes:
        pack: makes the call of its fields.
        fields: addresses of tensors that are given, then of those that are made, none of them
            known; and behind each what lies there in the call.
        shapes: of those that are made.
    """

    kernel: Kernel
    pack: Callable[..., bytes]
    fields: list[int | bytes]
    shapes: tuple[tuple[int, ...], ...]


_plans: dict[Any, _Plan] = {}


def repeat(
    terms: Terms, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None
) -> list[Tensor] | None:
    """What a call without key lengths or sums gives, if one like it was planned.

    The result; with g, its gradient, those of q, k and v. A plan is found by all that
    ``find_kernel`` and what it serves look at, so that neither is asked.
    """
    plan = _plans.get(_identify(terms, q, k, v, g))
    if plan is None or not is_found(plan.kernel, terms.activation):
        return None
    given = (q, k, v) if g is None else (q, k, v, g)
    addresses = [x.data_ptr() for x in given]
    if 0 in addresses or True in [x.is_neg() for x in given]:
        return None
    made = [_empty(*shape) for shape in plan.shapes]
    fields = plan.fields.copy()
    fields[::2] = [*addresses, *[x.data_ptr() for x in made]]
    _start(plan.kernel, plan.pack(*fields))
    return made


def _plan(
    kernel: Kernel,
    call: bytes,
    terms: Terms,
    given: Mapping[str, Tensor],
    made: Mapping[str, Tensor],
) -> None:
    """Keep a call for ``repeat``."""
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    places = [_PLACES[name] for name in (*given, *made)]
    ends = (*places[1:], len(call))
    parts = [call[place + _ADDRESS : end] for place, end in zip(places, ends, strict=True)]
    fields = [x for part in parts for x in (0, part)]
    pack = struct.Struct("=" + "".join(f"q{len(part)}s" for part in parts)).pack
    shapes = tuple(tuple(x.shape) for x in made.values())
    _plans[_identify(terms, *given.values())] = _Plan(kernel, pack, fields, shapes)


def _identify(
    terms: Terms, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None
) -> tuple[Any, ...]:
    shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
    key = (shapes, strides, q.dtype, k.dtype, v.dtype, terms, torch.get_num_threads())
    return key if g is None else (*key, g.shape, g.stride(), g.dtype)


def find_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    terms: Terms,
    dtype: torch.dtype,
) -> Kernel | None:
    """The kernel for a call whose products are of this dtype.

    None for those it does not serve, and where none can be had.
    """
    if terms.activation not in CLASSES or terms.logs or dtype != torch.float32:
        return None
    if not q.dtype == k.dtype == v.dtype or not _agree(q, k, v, bias, mask):
        return None
    if any(x is not None and x.dtype == torch.float64 for x in (bias, mask)):
        return None  # with more digits than the kernel computes
    scale = 1.0 if terms.scale is None else abs(terms.scale)
    if not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
        return None
    found = find(terms.activation)
    return found if isinstance(found, Kernel) else None


def _agree(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None) -> bool:
    """Whether shapes fit: who calls PyTorch's operator itself has not been asked yet."""
    batch, q_heads, queries, dim = q.shape
    if k.shape[:3] != v.shape[:3] or k.shape[3] != dim:
        return False
    if k.shape[0] != batch or q_heads % k.shape[1]:
        return False
    scores = (batch, q_heads, queries, k.shape[2])
    return all(
        x is None
        or (x.dim() == 4 and all(n in (1, m) for n, m in zip(x.shape, scores, strict=True)))
        for x in (bias, mask)
    )


def attend(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    terms: Terms,
    sums: Tensor | None = None,
) -> Tensor:
    """[B, Hq, Lq, Dv] in q's dtype; rows' sums of weights go to ``sums``, [B, Hq, Lq] in fp32."""
    o = _empty(*q.shape[:3], v.shape[3])
    heads, rows, block, least = q.shape[1], q.shape[2], QUERIES, QUERIES // 4
    is_few = rows <= FEW and bias is mask is None
    if is_few:  # all rows of a key head
        heads, rows = k.shape[1], q.shape[1] // k.shape[1] * rows
        block, least = rows, 1
    pieces = PIECES * torch.get_num_threads()
    while block > least and q.shape[0] * heads * -(-rows // block) < pieces:
        block = -(-block // 2)
    tensors = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "o": o, "sums": sums}
    kind = "few" if is_few else "forward"
    call = _run(kernel, kind, tensors, key_lengths, terms, block)
    if call is not None and bias is mask is key_lengths is sums is None:
        _plan(kernel, call, terms, {"q": q, "k": k, "v": v}, {"o": o})
    return o.to(q.dtype)


def differentiate(
    kernel: Kernel,
    given: Mapping[str, Tensor | None],
    key_lengths: Tensor | None,
    terms: Terms,
    *,
    need_dbias: bool,
    need_dmask: bool,
) -> list[Tensor]:
    """dq, dk, dv, then dbias and dmask if needed, each in its input's dtype.

    ``given`` has q, k, v, bias, mask and g, the gradient of o, by name; where the call has sums
    dsums, and o and sums if they divide it.
    """
    q, k, v = (x for name in "qkv" if (x := given[name]) is not None)
    heads, keys, threads = k.shape[0] * k.shape[1], k.shape[2], torch.get_num_threads()
    # Each share of the keys costs a dq of its own: one where threads have heads enough.
    wanted = -(-PIECES * threads // heads) if threads > 1 else 1
    most = MOST_BYTES // (4 * q.numel())
    block = -(-keys // max(1, min(wanted, keys // FEWEST_KEYS, most)))
    shares = -(-keys // block)
    made = {f"d{name}": _empty(*x.shape) for name, x in zip("qkv", (q, k, v), strict=True)}
    if shares > 1:
        made["parts"] = _empty(shares, *q.shape)
        made["finished"] = torch.zeros(heads, dtype=torch.int64, device="cpu")
    call = _run(kernel, "backward", {**given, **made}, key_lengths, terms, block)
    there = {name: x for name, x in given.items() if x is not None}
    if call is not None and shares == 1 and key_lengths is None and there.keys() == set("qkvg"):
        _plan(kernel, call, terms, there, made)
    grads = [made[f"d{name}"].to(q.dtype) for name in "qkv"]
    for name, is_needed in (("bias", need_dbias), ("mask", need_dmask)):
        if is_needed and (x := given[name]) is not None:
            dscores = _empty(*x.shape)
            _run(kernel, f"of {name}", {**given, "dscores": dscores}, key_lengths, terms, block)
            grads.append(dscores.to(x.dtype))
    return grads


def _empty(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.float32, device="cpu")


def _run(
    kernel: Kernel,
    kind: str,
    tensors: Mapping[str, Tensor | None],
    key_lengths: Tensor | None,
    terms: Terms,
    block: int,
) -> bytes | None:
    """Hand tensors, sizes and options over; gives what was, but for where copies were."""
    q, v, bias, mask = (tensors[name] for name in ("q", "v", "bias", "mask"))
    assert q is not None
    assert v is not None
    samples, q_heads, queries, dim = q.shape
    _, kv_heads, keys, value_dim = v.shape
    if key_lengths is not None:
        lengths = torch.tensor(read_key_lengths(key_lengths, keys), device="cpu")
        tensors = {**tensors, "existing": lengths}
    scale, moved = terms.split_scale(dim, has_bias=bias is not None or terms.bias != 0.0)
    kept: list[Tensor] = []  # copies, which must outlive the call
    numbers: list[int] = []
    for name, num_strides in _TENSORS.items():
        x = tensors.get(name)
        if x is None:
            numbers += (0,) * (1 + num_strides)
            continue
        read = _as_read(name, x)
        if read is not x:
            kept.append(read)
        strides = read.stride()[:num_strides]
        if num_strides == 4:  # an axis of one number serves all along it
            strides = [s if n > 1 else 0 for s, n in zip(strides, read.shape, strict=True)]
        numbers += (read.data_ptr(), *strides)
    is_bool = mask is not None and mask.dtype == torch.bool
    left, right = (_UNBOUNDED if x is None else min(x, _FAR) for x in (terms.left, terms.right))
    call = _CALL.pack(
        *numbers,
        *(samples, q_heads, kv_heads, queries, keys, dim, value_dim),
        *(left, right, block, torch.get_num_threads(), _KINDS.index(kind), is_bool),
        *(terms.normalize == "sum", terms.length == "keys"),
        *(scale, terms.bias, moved, terms.gain * moved, terms.alpha, terms.floor),
    )
    _start(kernel, call)
    return None if kept else call


def _as_read(name: str, x: Tensor) -> Tensor:
    """The tensor, or a copy if its numbers are not of fp32 or its rows not dense."""
    if x._is_zerotensor():
        x = x.new_zeros(x.shape)
    if x.is_floating_point():
        x = x.to(torch.float32)
    if x.is_neg():
        x = x.resolve_neg().contiguous()
    has_rows = _TENSORS[name] == 3 and x.dim() == 4
    return x.contiguous() if has_rows and x.stride(3) != 1 and x.shape[3] > 1 else x


def _start(kernel: Kernel, call: bytes) -> None:
    if kernel.run(call, kernel.region) != 0:
        raise MemoryError("there is no memory for a thread's part of the attention.")
