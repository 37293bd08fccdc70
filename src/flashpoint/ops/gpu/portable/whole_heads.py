"""Heads that fit one tile, norms of q and k inside: short sequences of small patches.

A program goes over heads, and what it loads of one it keeps until the end. Backward makes the
scores once for all gradients: five products. Rows behind the last are zeros, and so is what they
add. q, k and v may lie anywhere, as parts of one qkv too.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.activations import log_of
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import gpu_of
from flashpoint.ops.gpu.normalizer import load_of_rows, over_sum
from flashpoint.ops.gpu.portable.blocks import (
    Layout,
    finish_scores,
    gradient_of_scores,
    load_rows,
    product,
    store_rows,
    store_sums,
)
from flashpoint.ops.gpu.portable.qk_norm import normalize, normalize_gradient
from flashpoint.ops.gpu.replay import Recorder, Role, only
from flashpoint.ops.gpu.tiles.table import SMALLEST_BLOCK

# heads that a program loads ahead, with its own, and programs per processor: measured on an H200
FORWARD, NORMED_FORWARD, BACKWARD = (2, 4), (1, 8), (2, 2)


@triton.jit
def load_head(
    q, k, v, q_strides, k_strides, v_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
    ALIKE: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """q and k as they are, q-hat, k-hat and v of a head: [ROWS, BLOCK_D] each.

    ALIKE: k and v have q's strides, so that registers hold offsets once for all three.
    """
    if ALIKE:
        k_strides, v_strides = q_strides, q_strides
    exists = tl.arange(0, ROWS) < L
    q = load_rows(q, q_strides, b, h, 0, L, D, ROWS, BLOCK_D, False, False)
    k = load_rows(k, k_strides, b, h, 0, L, D, ROWS, BLOCK_D, False, False)
    v = load_rows(v, v_strides, b, h, 0, L, D, ROWS, BLOCK_D, False, False)
    q_hat = normalize(q, exists, q_gain, q_eps, Q_NORM, D)
    return q, k, q_hat, normalize(k, exists, k_gain, k_eps, K_NORM, D), v


@triton.jit
def score(
    a, b, scale, bias_number, HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr
):
    """scale * a @ b.T + bias_number."""
    s = tl.dot(a, b.T, input_precision="ieee")
    return finish_scores(
        s, 0, 0, None, (), 0, 0, 0, 0, scale, bias_number, HAS_SCALE, HAS_BIAS_NUMBER
    )


@triton.jit
def whole_kernel(
    q, k, v, o, sums, q_gain, k_gain,              # pointers; sums and gains may be None
    q_strides, k_strides, v_strides, H, L, num_heads,  # num_heads: of all samples
    q_eps, k_eps, scale, bias_number, gain, shrink, moved, log_moved, plane,
    WEIGH: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, D: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, BY_SUM: tl.constexpr, LOGS: tl.constexpr,
    ALIKE: tl.constexpr, LAYOUT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PREFETCH: tl.constexpr,
):
    """o_i = gain * n ** -alpha * sum_j h(scale * q-hat_i . k-hat_j + b) v_j of whole heads.

    BY_SUM: divided as ``forward`` does it.
    """
    first, step = tl.program_id(0), tl.num_programs(0)
    for head in tl.range(first, num_heads, step, num_stages=PREFETCH):
        b, h = head // H, head % H
        _, _, q_hat, k_hat, v_tile = load_head(
            q, k, v, q_strides, k_strides, v_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
            ALIKE, Q_NORM, K_NORM, D, ROWS, BLOCK_D,
        )
        w = WEIGH(score(q_hat, k_hat, scale, bias_number, HAS_SCALE, HAS_BIAS_NUMBER))
        if SHRINKS:
            w *= shrink
        o_tile = product(w, v_tile, WIDE)
        if sums is not None:  # of keys behind the last v is zero, but perhaps not the weight
            w = tl.where(tl.arange(0, ROWS)[None, :] < L, w, 0.0)
            total = tl.sum(w, 1)
            logs = tl.sum(w * log_of(w), 1) if LOGS else total
            store_sums(
                sums, total, logs, moved, log_moved, plane, b, h, 0, L, H, L, ROWS, LOGS
            )
        if BY_SUM:
            o_tile *= over_sum(total, gain)[:, None]
        else:
            o_tile *= gain / shrink if SHRINKS else gain
        store_rows(o, o_tile, b, h, 0, L, H, L, D, ROWS, BLOCK_D, LAYOUT)


@triton.jit
def take_back(
    dhat, x, dx, gain, eps, b, h, L, H,
    KIND: tl.constexpr, D: tl.constexpr,
    LAYOUT: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Take a tile of dq-hat or dk-hat through the norm to dx; gives its share of dgain."""
    exists = tl.arange(0, ROWS) < L
    tile, share = normalize_gradient(dhat, x, exists, gain, eps, KIND, D)
    store_rows(dx, tile, b, h, 0, L, H, L, D, ROWS, BLOCK_D, LAYOUT)
    return share


@triton.jit
def store_share(dgain, share, D: tl.constexpr):
    """A program's share of a gain's gradient goes to its row of dgain [programs, D]."""
    if dgain is not None:
        d = tl.arange(0, share.shape[0])
        tl.store(dgain + tl.program_id(0) * D + d, share, mask=d < D)


@triton.jit
def whole_backward_kernel(
    q, k, v, do, dq, dk, dv,                       # pointers
    q_gain, k_gain, dq_gain, dk_gain, normalizers, offsets, slopes,  # pointers or None
    q_strides, k_strides, v_strides, do_strides, normalizer_strides,
    H, L, num_heads,                               # num_heads: of all samples
    q_eps, k_eps, scale, bias_number, gain, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr, Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr, D: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_BIAS_NUMBER: tl.constexpr, SHRINKS: tl.constexpr, WIDE: tl.constexpr,
    ALIKE: tl.constexpr, LAYOUT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PREFETCH: tl.constexpr,
):
    """dq, dk, dv of whole heads, by ``backward``'s formulas; a row of each dgain a program."""
    q_share, k_share = tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.float32)
    first, step = tl.program_id(0), tl.num_programs(0)
    for head in tl.range(first, num_heads, step, num_stages=PREFETCH):
        b, h = head // H, head % H
        q_tile, k_tile, q_hat, k_hat, v_tile = load_head(
            q, k, v, q_strides, k_strides, v_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
            ALIKE, Q_NORM, K_NORM, D, ROWS, BLOCK_D,
        )
        do_tile = load_rows(do, do_strides, b, h, 0, L, D, ROWS, BLOCK_D, False, False)
        s = score(k_hat, q_hat, scale, bias_number, HAS_SCALE, HAS_BIAS_NUMBER)
        dw = tl.dot(v_tile, do_tile.T, input_precision="ieee")  # [keys, queries], as s
        w = WEIGH(s)
        factor = gain
        if offsets is not None:
            rows = tl.arange(0, ROWS)
            own = load_of_rows(normalizers, normalizer_strides, b, h, rows, L)[None, :]
            dw = dw * own + load_of_rows(offsets, normalizer_strides, b, h, rows, L)[None, :]
            if slopes is not None:
                slope = load_of_rows(slopes, normalizer_strides, b, h, rows, L)[None, :]
                dw += slope * log_of(w)
            w *= own
            factor = 1.0
        ds = gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN)
        if SHRINKS:
            w, ds = w * shrink, ds * shrink_ds
        tail = scale * factor / shrink_ds if SHRINKS else scale * factor
        dv_tile = product(w, do_tile, WIDE)
        dv_tile *= factor / shrink if SHRINKS else factor
        store_rows(dv, dv_tile, b, h, 0, L, H, L, D, ROWS, BLOCK_D, LAYOUT)
        if not WIDE:
            ds = ds.to(q_tile.dtype)
        dk_hat = product(ds, q_hat, WIDE) * tail
        dq_hat = product(ds.T, k_hat, WIDE) * tail
        k_share += take_back(
            dk_hat, k_tile, dk, k_gain, k_eps, b, h, L, H, K_NORM, D, LAYOUT, ROWS, BLOCK_D
        )
        q_share += take_back(
            dq_hat, q_tile, dq, q_gain, q_eps, b, h, L, H, Q_NORM, D, LAYOUT, ROWS, BLOCK_D
        )
    store_share(dq_gain, q_share, D)
    store_share(dk_gain, k_share, D)


def launch(
    call: Call, recorder: Recorder, o: Tensor, layout: Layout, sums: Tensor | None = None
) -> None:
    """Write the result to o, and the rows' sums."""
    programs, tiles = _tiles(call, *(FORWARD if call.qk_norm.is_none else NORMED_FORWARD))
    everything = call.arguments() | _inputs(call) | {"o": o, "sums": sums, "LAYOUT": int(layout)}
    everything["plane"] = call.plane_of(sums)
    recorder.launch(whole_kernel, programs, only(whole_kernel, everything) | tiles, call.roles)


def launch_backward(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], layout: Layout,
) -> dict[Role, Tensor]:
    """Write dq, dk and dv.

    Gives the programs' shares [programs, D] of the gradients of the gains there are, by role.
    """
    programs, tiles = _tiles(call, *BACKWARD)
    gains = {Role.DQ_GAIN: call.qk_norm.q_gain, Role.DK_GAIN: call.qk_norm.k_gain}
    shares = {
        role: recorder.empty(role, (programs, do.shape[3]), torch.float32)
        for role, gain in gains.items() if gain is not None
    }
    everything = arguments | _inputs(call, do) | {"LAYOUT": int(layout)}
    everything |= dict.fromkeys(gains) | shares
    everything |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    kernel = whole_backward_kernel
    recorder.launch(kernel, programs, only(kernel, everything) | tiles, call.backward_roles())
    return shares


def _inputs(call: Call, do: Tensor | None = None) -> dict[str, Any]:
    B, H, L, _ = call.q.shape
    alike = call.q.stride() == call.k.stride() == call.v.stride()
    return call.pointers(do) | {"H": H, "L": L, "num_heads": B * H, "ALIKE": alike}


def _tiles(call: Call, prefetch: int, per_processor: int) -> tuple[int, dict[str, int]]:
    """Programs, and what the compiler takes."""
    B, H, L, _ = call.q.shape
    programs = min(B * H, per_processor * gpu_of(call.q.device).processors)
    rows = max(SMALLEST_BLOCK, triton.next_power_of_2(L))
    own = {"ROWS": rows, "PREFETCH": prefetch, "num_stages": prefetch, "num_warps": 4}
    return programs, own
