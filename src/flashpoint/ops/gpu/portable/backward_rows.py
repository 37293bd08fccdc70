"""What a query's sum of weights z_i brings to backward: a factor f_i, and an offset e_i of dw_ij.

    dw_ij = f_i do_i . v_j + e_i + l_i log w_ij
    f_i = gain * n_i ** -alpha             e_i = dz_i                          normalize="length"
    f_i = 1 / (z_i + floor * n_i)          e_i = dz_i - f_i do_i . o_i         normalize="sum"

With gradients l_i of sum_j w_ij log w_ij, e_i has l_i too. All are taken times ``moved`` where the
scale stands behind h: they meet weights that lack it, and so do the logarithms.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.normalizer import broadcast_strides, normalizer_of, over_sum
from flashpoint.ops.gpu.portable.blocks import HEADS_FIRST, Layout, sequence
from flashpoint.ops.gpu.reading import block_of
from flashpoint.ops.gpu.replay import Recorder, Role, only

ROWS = 64
PLACES = 128  # of numbers of rows: whole blocks of every kernel


class SumGradients(NamedTuple):
    """What backward gets beside do where a call has sums.

    Attributes:
        dsums: the gradient of the sums, [B, H, L] or [H, T], two of these with logs, or None.
        o, sums: the results of forward where these divide, or None.
        layout: how heads lie in o.
    """

    dsums: Tensor | None
    o: Tensor | None
    sums: Tensor | None
    layout: Layout


@triton.jit
def rows_kernel(
    factors, offsets, slopes,                      # [B, H, places], written, zeros behind Lq
    do, g, o, sums, dsums,                         # pointers; all but do may be None
    normalizers, lengths, cu_q, cu_k,              # pointers or None
    do_strides, normalizer_strides,
    Hq, Lq, Lk, Tq, places, plane, left, right, gain, alpha, moved, log_moved,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr, BY_SUM: tl.constexpr, O_LAYOUT: tl.constexpr,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
):
    """f_i and e_i of a block of queries; g [B, H, Lq, DV]: f_i do_i, where it is wanted.

    What is rounded for g is rounded for e_i, too: dw_ij = g_i . (v_j - o_i) may cancel.
    """
    num_blocks = tl.cdiv(places, BLOCK_M)
    pid = tl.program_id(0)
    rows = pid % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    h = pid // num_blocks % Hq
    b = pid // num_blocks // Hq
    batch, q_start, _, num_queries, num_keys, existing = sequence(b, lengths, cu_q, cu_k, Lq, Lk)
    shift = num_keys - num_queries
    factor = normalizer_of(
        rows, gain, alpha, normalizers, normalizer_strides, b, h, shift, num_queries, existing,
        num_keys, left, right, NORMALIZER, POWER,
    )
    T = Tq if cu_q is not None else Lq
    exists = rows < num_queries
    token = (q_start + rows).to(tl.int64)
    head = tl.cast(batch, tl.int64) * Hq + h
    offset = tl.zeros([BLOCK_M], tl.float32)
    if dsums is not None:
        offset = moved * tl.load(dsums + head * T + token, mask=exists, other=0.0)
        if slopes is not None:
            at = dsums + plane + head * T + token
            slope = moved * tl.load(at, mask=exists, other=0.0)
            offset += slope * (1.0 + log_moved)
            at = (tl.cast(b, tl.int64) * Hq + h) * places + rows
            tl.store(slopes + at, slope, mask=rows < places)
    d = tl.arange(0, BLOCK_DV)
    ok = exists[:, None] & (d < DV)[None, :]
    at = do + tl.cast(batch, tl.int64) * do_strides[0] + tl.cast(h, tl.int64) * do_strides[1]
    at += token[:, None] * do_strides[2] + d.to(tl.int64)[None, :] * do_strides[3]
    if BY_SUM:
        factor = over_sum(tl.load(sums + head * T + token, mask=exists, other=0.0) / moved, factor)
    factor = tl.where(exists, factor, 0.0)
    if BY_SUM or g is not None:
        tile = tl.load(at, mask=ok, other=0.0).to(tl.float32) * factor[:, None]
        if g is not None:
            rounded = tile.to(g.dtype.element_ty)
            tl.store(g + (head * T + token)[:, None] * DV + d[None, :], rounded, mask=ok)
            tile = rounded.to(tl.float32)
        if BY_SUM:
            first = head * T + token
            if O_LAYOUT != HEADS_FIRST:
                first = (tl.cast(batch, tl.int64) * T + token) * Hq + h
            o_tile = tl.load(o + first[:, None] * DV + d[None, :], mask=ok, other=0.0)
            offset -= tl.sum(tile * o_tile.to(tl.float32), 1)
    at = (tl.cast(b, tl.int64) * Hq + h) * places + rows
    if factors is not None:
        tl.store(factors + at, factor, mask=rows < places)
    tl.store(offsets + at, offset, mask=rows < places)


def launch_rows(
    call: Call, recorder: Recorder, do: Tensor, given: SumGradients, arguments: dict[str, Any],
    *, scales_do: bool,
) -> tuple[Tensor, dict[str, Any]]:
    """do and the arguments of backward's kernels, with e_i among them.

    ``scales_do``: do is f_i do_i, rounded; else f_i are among the arguments, too.
    """
    heads = (call.num_samples, call.q_heads)
    places = triton.cdiv(call.num_queries, PLACES) * PLACES
    made = {"factors": None, "g": None}
    if scales_do:
        shape = (*heads, call.num_queries, call.v.shape[3])
        made["g"] = recorder.empty(Role.G, shape, do.dtype)
    else:
        made["factors"] = recorder.empty(Role.FACTORS, (*heads, places), torch.float32)
    offsets = recorder.empty(Role.OFFSETS, (*heads, places), torch.float32)
    slopes = None
    if call.terms.logs and given.dsums is not None:
        slopes = recorder.empty(Role.SLOPES, (*heads, places), torch.float32)
    own = made | {
        "offsets": offsets, "slopes": slopes, "places": places,
        "plane": call.plane_of(given.dsums), "do": do, "do_strides": do.stride(),
        "o": given.o, "sums": given.sums, "dsums": given.dsums, "O_LAYOUT": int(given.layout),
        "BLOCK_M": ROWS, "BLOCK_DV": block_of(call.v.shape[3]),
    }
    programs = triton.cdiv(places, ROWS) * call.q_heads * call.num_samples
    recorder.launch(rows_kernel, programs, only(rows_kernel, arguments | own))
    arguments = arguments | {"offsets": offsets, "slopes": slopes}
    if made["g"] is not None:
        return made["g"], arguments
    return do, arguments | {
        "normalizers": made["factors"], "normalizer_strides": broadcast_strides(made["factors"]),
        "NORMALIZER": "given",
    }
