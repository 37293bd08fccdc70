"""Heads that fit one tile, norms of q and k inside: short sequences of small patches.

A program goes over heads, and what it loads of one it keeps until the end. Backward makes the
scores once for all gradients: five products. Rows behind the last are zeros, and so is what they
add. q, k and v may lie anywhere, as parts of one qkv too.

The gradient of a bias that all samples share is summed by each program over its heads, which are
one head of many samples then; the programs' sums are added up behind the kernel.
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
    x, y, queries, keys, bias, bias_strides, b, h, L, scale, bias_number,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr,
):
    """scale * x @ y.T, with biases; queries and keys are 2-d, along their axes."""
    s = tl.dot(x, y.T, input_precision="ieee")
    return finish_scores(
        s, queries, keys, bias, bias_strides, b, h, L, L, scale, bias_number,
        HAS_SCALE, HAS_BIAS_NUMBER,
    )


@triton.jit
def whole_kernel(
    q, k, v, o, sums, bias, q_gain, k_gain,        # pointers; those behind o may be None
    q_strides, k_strides, v_strides, bias_strides, H, L, num_heads,  # num_heads: of all samples
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
    queries, keys = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    for head in tl.range(first, num_heads, step, num_stages=PREFETCH):
        b, h = head // H, head % H
        _, _, q_hat, k_hat, v_tile = load_head(
            q, k, v, q_strides, k_strides, v_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
            ALIKE, Q_NORM, K_NORM, D, ROWS, BLOCK_D,
        )
        w = WEIGH(score(
            q_hat, k_hat, queries, keys, bias, bias_strides, b, h, L, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        ))
        if SHRINKS:
            w *= shrink
        o_tile = product(w, v_tile, WIDE)
        if sums is not None:  # of keys behind the last v is zero, but perhaps not the weight
            w = tl.where(keys < L, w, 0.0)
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
    bias, q_gain, k_gain, dbias, dq_gain, dk_gain, normalizers, offsets, slopes,  # or None
    q_strides, k_strides, v_strides, do_strides, bias_strides, normalizer_strides,
    H, L, num_heads,                               # num_heads: of all samples
    q_eps, k_eps, scale, bias_number, gain, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr, Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr, D: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_BIAS_NUMBER: tl.constexpr, SHRINKS: tl.constexpr, WIDE: tl.constexpr,
    ALIKE: tl.constexpr, LAYOUT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PREFETCH: tl.constexpr,
):
    """dq, dk, dv of whole heads, by ``backward``'s formulas; a row of each dgain a program.

    dbias [programs, L, L]: the sums of a program's heads.
    """
    q_share, k_share = tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.float32)
    bias_share = tl.zeros([ROWS, ROWS], tl.float32)
    first, step = tl.program_id(0), tl.num_programs(0)
    keys, queries = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    for head in tl.range(first, num_heads, step, num_stages=PREFETCH):
        b, h = head // H, head % H
        q_tile, k_tile, q_hat, k_hat, v_tile = load_head(
            q, k, v, q_strides, k_strides, v_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
            ALIKE, Q_NORM, K_NORM, D, ROWS, BLOCK_D,
        )
        do_tile = load_rows(do, do_strides, b, h, 0, L, D, ROWS, BLOCK_D, False, False)
        s = score(
            k_hat, q_hat, queries, keys, bias, bias_strides, b, h, L, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        )
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
        if dbias is not None:
            bias_share += ds * factor
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
    if dbias is not None:
        at = dbias + (tl.cast(first, tl.int64) * L + queries) * L + keys
        tl.store(at, bias_share, mask=(queries < L) & (keys < L))


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

    Gives the programs' shares [programs, D] of the gradients of the gains there are, by role, and
    those of the bias [programs, L, L] where ``sums_bias`` says so.
    """
    programs, tiles = _tiles(call, *BACKWARD)
    gains = {Role.DQ_GAIN: call.qk_norm.q_gain, Role.DK_GAIN: call.qk_norm.k_gain}
    shares = {
        role: recorder.empty(role, (programs, do.shape[3]), torch.float32)
        for role, gain in gains.items() if gain is not None
    }
    everything = arguments | _inputs(call, do) | {"LAYOUT": int(layout)}
    if sums_bias(call):
        shape = (programs, call.num_queries, call.num_keys)
        shares[Role.DBIAS] = recorder.empty(Role.DBIAS, shape, torch.float32)
    everything |= dict.fromkeys((*gains, Role.DBIAS)) | shares
    everything |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    kernel = whole_backward_kernel
    recorder.launch(kernel, programs, only(kernel, everything) | tiles, call.backward_roles())
    return shares


def sums_bias(call: Call) -> bool:
    """True where programs sum the gradient of a bias: one that all samples share."""
    shape = (1, call.q_heads, call.num_queries, call.num_keys)
    return call.bias_has_gradient and call.bias is not None and call.bias.shape == shape


def add_up_bias(call: Call, shares: Tensor) -> Tensor:
    """dbias [1, H, L, L] of the programs' sums; each has one of the H heads."""
    assert call.bias is not None
    sums = shares.view(-1, *call.bias.shape[1:]).sum(0, keepdim=True)
    return sums.to(call.bias.dtype)


def _inputs(call: Call, do: Tensor | None = None) -> dict[str, Any]:
    B, H, L, _ = call.q.shape
    alike = call.q.stride() == call.k.stride() == call.v.stride()
    return call.pointers(do) | {"H": H, "L": L, "num_heads": B * H, "ALIKE": alike}


def _tiles(call: Call, prefetch: int, per_processor: int) -> tuple[int, dict[str, int]]:
    """Programs, and what the compiler takes."""
    B, H, L, _ = call.q.shape
    programs = min(B * H, per_processor * gpu_of(call.q.device).processors)
    if sums_bias(call):  # all of a program's heads have one bias
        programs = max(programs // H, 1) * H
    rows = max(SMALLEST_BLOCK, triton.next_power_of_2(L))
    own = {"ROWS": rows, "PREFETCH": prefetch, "num_stages": prefetch, "num_warps": 4}
    return programs, own
