"""Norms of packed q and k in passes of their own: x-hat to memory, and gradients back in place.

For calls whose kernels take q-hat and k-hat as they take q and k. q and k are parts of qkv, in any
strides; rows are those of all tokens and heads, one after another as these lie.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.triton.packed_norm import normalise, normalise_gradient
from flashpoint.ops.triton.problem import block_of, prepare
from flashpoint.ops.triton.replay import Recorder, run_recorded
from flashpoint.ops.triton.tuning import gpu_of

TILE = 4096  # numbers of a program at a time
PER_PROCESSOR = 8  # programs of the backward pass, each of which leaves a share of dgain


@triton.jit
def find_rows(block, lengths, H, L, num_rows, ROWS: tl.constexpr):
    """Number, sample, token and head of a block's rows, and which of these rows exist."""
    row = tl.cast(block, tl.int64) * ROWS + tl.arange(0, ROWS)
    token, h = row // H, row % H
    b, i = token // L, token % L
    exists = row < num_rows
    if lengths is not None:
        exists = exists & (i < tl.load(lengths + b, mask=exists, other=0))
    return row, b, i, h, exists


@triton.jit
def offsets_of(b, i, h, strides, BLOCK_D: tl.constexpr):
    """Of rows in [B, L, H, D]: [ROWS, BLOCK_D]."""
    d = tl.arange(0, BLOCK_D)
    return (b * strides[0] + i * strides[1] + h * strides[2])[:, None] + d[None, :] * strides[3]


@triton.jit
def normalise_heads_kernel(
    x, hat, gain, lengths,                         # pointers; the last two may be None
    x_strides, H, L, num_rows, eps,
    KIND: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """x-hat, dense, of x [B, L, H, D]; zeros where no key exists."""
    row, b, i, h, exists = find_rows(tl.program_id(0), lengths, H, L, num_rows, ROWS)
    d = tl.arange(0, BLOCK_D)[None, :]
    at = offsets_of(b, i, h, x_strides, BLOCK_D)
    tile = tl.load(x + at, mask=exists[:, None] & (d < D), other=0.0)
    tile = normalise(tile, exists, gain, eps, KIND, D)
    tl.store(hat + row[:, None] * D + d, tile, mask=(row < num_rows)[:, None] & (d < D))


@triton.jit
def denormalise_heads_kernel(
    dx, x, gain, dgain, lengths,                   # pointers; the last three may be None
    dx_strides, x_strides, H, L, num_rows, eps,
    KIND: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """dx [B, L, H, D], of x-hat, becomes that of x; shares go to dgain [programs, D]."""
    share = tl.zeros([BLOCK_D], tl.float32)
    d = tl.arange(0, BLOCK_D)
    for block in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
        row, b, i, h, exists = find_rows(block, lengths, H, L, num_rows, ROWS)
        inside = (d < D)[None, :]
        there = offsets_of(b, i, h, dx_strides, BLOCK_D)
        at = offsets_of(b, i, h, x_strides, BLOCK_D)
        dhat = tl.load(dx + there, mask=exists[:, None] & inside, other=0.0).to(tl.float32)
        tile = tl.load(x + at, mask=exists[:, None] & inside, other=0.0)
        made, own = normalise_gradient(dhat, tile, exists, gain, eps, KIND, D)
        made = made.to(dx.dtype.element_ty)
        tl.store(dx + there, made, mask=(row < num_rows)[:, None] & inside)
        share += own
    if dgain is not None:
        tl.store(dgain + tl.program_id(0) * D + d, share, mask=d < D)


def normalise_heads(
    x: Tensor, gain: Tensor | None, lengths: Tensor | None, kind: str, eps: float
) -> Tensor:
    """x-hat of x [B, L, H, D], dense; x itself without a norm."""
    if kind == "none" or x.numel() == 0:
        return x
    inputs = prepare(x=x, gain=gain, lengths=lengths)

    def first_call(recorder: Recorder) -> list[Tensor]:
        hat = recorder.empty("hat", x.shape, x.dtype)
        arguments, num_blocks = _arguments(inputs, kind, eps)
        recorder.launch(normalise_heads_kernel, num_blocks, arguments | {"hat": hat})
        return [hat]

    return run_recorded("normalise_heads", inputs, (kind, eps), ("hat",), first_call)[0]


def denormalise_heads(
    dx: Tensor, x: Tensor, gain: Tensor | None, lengths: Tensor | None, kind: str, eps: float
) -> list[Tensor]:
    """Turn dx [B, L, H, D] from x-hat's gradient to that of x; gives dgain if there is one."""
    if kind == "none" or x.numel() == 0:
        return [] if gain is None else [torch.zeros_like(gain)]
    inputs = prepare(x=x, dx=dx, gain=gain, lengths=lengths)
    outputs = () if gain is None else ("dgain",)

    def first_call(recorder: Recorder) -> list[Tensor]:
        arguments, num_blocks = _arguments(inputs, kind, eps)
        programs = min(num_blocks, PER_PROCESSOR * gpu_of(x.device).processors)
        shares = [recorder.empty(name, (programs, x.shape[3]), torch.float32) for name in outputs]
        own = {"dgain": shares[0] if shares else None, "dx_strides": dx.stride()}
        recorder.launch(denormalise_heads_kernel, programs, arguments | own)
        return shares

    shares = run_recorded("denormalise_heads", inputs, (kind, eps), outputs, first_call)
    return [share.sum(0).to(gain.dtype) for share in shares if gain is not None]


def _arguments(
    inputs: dict[str, Tensor | None], kind: str, eps: float
) -> tuple[dict[str, object], int]:
    """What both kernels take, and the number of blocks."""
    x = inputs["x"]
    assert x is not None
    B, L, H, D = x.shape
    rows = max(1, TILE // block_of(D))
    arguments = inputs | {
        "x_strides": x.stride(), "H": H, "L": L, "num_rows": B * L * H, "eps": eps,
        "KIND": kind, "D": D, "ROWS": rows, "BLOCK_D": block_of(D), "num_warps": 4,
    }
    return arguments, triton.cdiv(B * L * H, rows)
