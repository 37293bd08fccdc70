"""Norms of packed q and k in passes of their own: x-hat to memory, and gradients back in place.

For kernels that take q-hat and k-hat as they take q and k. One launch serves both: to x-hat every
other program takes q, so that what lies together is read together; back the first half of the
programs takes q. Rows are those of all tokens and heads, one after another as these lie.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import gpu_of
from flashpoint.ops.gpu.portable.qk_norm import load_gain, normalize_gradient, unit_rows
from flashpoint.ops.gpu.reading import block_of
from flashpoint.ops.gpu.replay import Recorder, Role, only

TILE = 4096  # numbers of a program at a time
PER_PROCESSOR = 8  # programs of the backward pass for each of q and k


@triton.jit
def find_rows(block, lengths, H, L, num_rows, ROWS: tl.constexpr):
    """Number, sample, token and head of a block's rows, and which of these rows exist."""
    row = block * ROWS + tl.arange(0, ROWS)
    token, h = row // H, row % H
    b, i = token // L, token % L
    exists = row < num_rows
    if lengths is not None:
        exists = exists & (i < tl.load(lengths + b, mask=exists, other=0))
    return row, b, i, h, exists


@triton.jit
def offsets_of(b, i, h, strides, BLOCK_D: tl.constexpr):
    """Of rows in [B, L, H, D]: [ROWS, BLOCK_D]."""
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    at = b.to(tl.int64) * strides[0] + i.to(tl.int64) * strides[1] + h.to(tl.int64) * strides[2]
    return at[:, None] + d[None, :] * strides[3]


@triton.jit
def normalize_block(
    block, x, hat, statistics, gain, lengths, strides, H, L, num_rows, eps,
    KIND: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """x-hat, dense, of a block of x's rows, and their statistics; zeros where no key exists."""
    row, b, i, h, exists = find_rows(block, lengths, H, L, num_rows, ROWS)
    d = tl.arange(0, BLOCK_D)[None, :]
    at = offsets_of(b, i, h, strides, BLOCK_D)
    tile = tl.load(x + at, mask=exists[:, None] & (d < D), other=0.0)
    u, r, mean = unit_rows(tile, exists, eps, KIND, D)
    tile = (u * load_gain(gain, D, BLOCK_D)).to(tile.dtype)
    there = row.to(tl.int64)[:, None] * D + d
    tl.store(hat + there, tile, mask=(row < num_rows)[:, None] & (d < D))
    if statistics is not None:
        own = statistics + row.to(tl.int64) * 2
        tl.store(own, mean, mask=row < num_rows)
        tl.store(own + 1, r, mask=row < num_rows)


@triton.jit
def normalize_heads_kernel(
    q, k, q_hat, k_hat, q_statistics, k_statistics,  # pointers; all but q and k may be None
    q_gain, k_gain, lengths,
    strides, H, L, num_rows, q_eps, k_eps,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """q-hat and k-hat of those of q and k [B, L, H, D] that have a norm.

    Statistics [B, L, H, 2] are each row's mean and r.
    """
    block, of_q = tl.program_id(0), Q_NORM != "none"
    if Q_NORM != "none" and K_NORM != "none":
        block, of_q = block // 2, block % 2 == 0
    if of_q:
        if Q_NORM != "none":
            normalize_block(
                block, q, q_hat, q_statistics, q_gain, None, strides, H, L, num_rows, q_eps,
                Q_NORM, D, ROWS, BLOCK_D,
            )
    else:
        if K_NORM != "none":
            normalize_block(
                block, k, k_hat, k_statistics, k_gain, lengths, strides, H, L, num_rows, k_eps,
                K_NORM, D, ROWS, BLOCK_D,
            )


@triton.jit
def denormalize_rows(
    first, step, dx, x, gain, dgain, lengths, dx_strides, strides, H, L, num_rows, eps,
    KIND: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Every step-th block of dx, from the first on; their share goes to a row of dgain."""
    share = tl.zeros([BLOCK_D], tl.float32)
    d = tl.arange(0, BLOCK_D)
    inside = (d < D)[None, :]
    for block in tl.range(first, tl.cdiv(num_rows, ROWS), step):
        row, b, i, h, exists = find_rows(block, lengths, H, L, num_rows, ROWS)
        there = offsets_of(b, i, h, dx_strides, BLOCK_D)
        at = offsets_of(b, i, h, strides, BLOCK_D)
        dhat = tl.load(dx + there, mask=exists[:, None] & inside, other=0.0).to(tl.float32)
        tile = tl.load(x + at, mask=exists[:, None] & inside, other=0.0)
        made, own = normalize_gradient(dhat, tile, exists, gain, eps, KIND, D)
        made = made.to(dx.dtype.element_ty)
        tl.store(dx + there, made, mask=(row < num_rows)[:, None] & inside)
        share += own
    if dgain is not None:
        tl.store(dgain + first * D + d, share, mask=d < D)


@triton.jit
def denormalize_heads_kernel(
    dq, dk, q, k, q_gain, k_gain, dq_gain, dk_gain, lengths,  # pointers; the last five may be None
    dx_strides, strides, H, L, num_rows, q_eps, k_eps, step,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """dq and dk [B, L, H, D], of q-hat and k-hat, become those of q and k.

    By ``step`` programs each, which leave their shares in dq_gain and dk_gain [step, D].
    """
    first = tl.program_id(0)
    if Q_NORM == "none":
        first += step
    if first < step:
        if Q_NORM != "none":
            denormalize_rows(
                first, step, dq, q, q_gain, dq_gain, None, dx_strides, strides, H, L, num_rows,
                q_eps, Q_NORM, D, ROWS, BLOCK_D,
            )
    else:
        if K_NORM != "none":
            denormalize_rows(
                first - step, step, dk, k, k_gain, dk_gain, lengths, dx_strides, strides, H, L,
                num_rows, k_eps, K_NORM, D, ROWS, BLOCK_D,
            )


def normalize_heads(
    call: Call, recorder: Recorder, *, has_statistics: bool = False
) -> dict[Role, Tensor]:
    """q-hat and k-hat [B, L, H, D], dense, of those with a norm; their statistics if asked for."""
    q = call.q.transpose(1, 2)
    names = [name for name, kind in call.qk_norm.kinds.items() if kind != "none"]
    if not names or call.is_empty:
        return {}
    roles = [Role(f"{name}_hat") for name in names]
    made = {role: recorder.empty(role, q.shape, q.dtype) for role in roles}
    if has_statistics:
        roles = [Role(f"{name}_statistics") for name in names]
        shape = (*q.shape[:3], 2)
        made |= {role: recorder.empty(role, shape, torch.float32) for role in roles}
    arguments, num_blocks = _arguments(call)
    arguments |= {"q_hat": None, "k_hat": None, "q_statistics": None, "k_statistics": None} | made
    kernel = normalize_heads_kernel
    everything = only(kernel, arguments) | {"num_warps": 4}
    recorder.launch(kernel, num_blocks * len(names), everything, call.roles)
    return made


def denormalize_heads(
    call: Call, grads: list[Tensor], recorder: Recorder
) -> dict[Role, Tensor]:
    """Turn dq and dk of grads [B, H, L, D] from gradients of q-hat and k-hat to those of q and k.

    Gives shares of the gains' gradients [programs, D], where there are gains.
    """
    num_normed = sum(kind != "none" for kind in call.qk_norm.kinds.values())
    if not num_normed or call.is_empty:
        return {}
    arguments, num_blocks = _arguments(call)
    dq, dk = (grad.transpose(1, 2) for grad in grads[:2])
    step = min(num_blocks, PER_PROCESSOR * gpu_of(dq.device).processors)
    gains = {Role.DQ_GAIN: call.qk_norm.q_gain, Role.DK_GAIN: call.qk_norm.k_gain}
    shares = {
        role: recorder.empty(role, (step, dq.shape[3]), torch.float32)
        for role, gain in gains.items() if gain is not None
    }
    arguments |= {"dq": dq, "dk": dk, "dx_strides": dq.stride(), "step": step}
    arguments |= dict.fromkeys(gains) | shares
    kernel = denormalize_heads_kernel
    everything = only(kernel, arguments) | {"num_warps": 4}
    recorder.launch(kernel, step * num_normed, everything, call.roles)
    return shares


def _arguments(call: Call) -> tuple[dict[str, Any], int]:
    """What both kernels take, and the number of blocks."""
    q, k = call.q.transpose(1, 2), call.k.transpose(1, 2)
    B, L, H, D = q.shape
    rows = max(1, TILE // block_of(D))
    arguments = call.qk_norm.arguments() | {
        "q": q, "k": k, "lengths": call.lengths, "strides": q.stride(), "H": H, "L": L,
        "num_rows": B * L * H, "D": D, "ROWS": rows, "BLOCK_D": block_of(D),
    }
    return arguments, triton.cdiv(B * L * H, rows)
