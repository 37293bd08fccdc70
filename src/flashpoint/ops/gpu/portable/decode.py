"""Few queries, many keys: the keys are split among programs, and the parts add up.

Query heads that share a key head are rows of one tile, so that keys and values are read once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.activations import log_of
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import HOPPER_FAMILY, gpu_of
from flashpoint.ops.gpu.normalizer import normalizer_of, over_sum
from flashpoint.ops.gpu.portable.blocks import (
    Layout,
    add_product,
    dot_fp32,
    finish_scores,
    in_window,
    keys_of_block,
    load_rows,
    load_scored,
    sequence,
)
from flashpoint.ops.gpu.replay import Recorder, Role, only
from flashpoint.ops.gpu.tiles.autotune import autotuned
from flashpoint.ops.gpu.tiles.table import decode_tiles
from flashpoint.ops.implementations import INTERPRETED


@triton.jit
def decode_kernel(
    q, k, v, parts, part_sums,                     # parts [splits, B, Hq, Lq, Dv] in fp32
    bias, mask, lengths,                           # pointers or None
    q_strides, k_strides, v_strides, bias_strides, mask_strides,
    B, Hq, Lq, Lk, left, right, scale, bias_number, shrink, num_splits,
    WEIGH: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, MASK: tl.constexpr,
    SHRINKS: tl.constexpr, WIDE: tl.constexpr, LOGS: tl.constexpr,
    ENDS_EARLY: tl.constexpr, TMA: tl.constexpr, CHAINED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """parts[split] = sum of h(scale * q_i . k_j + b_ij) v_j over the split's keys j.

    part_sums [splits, B, Hq, Lq], or None: the same of w = h alone; LOGS: and behind all of them
    those of w log w.
    """
    if CHAINED:  # the next kernel may be made ready; it waits for our end by itself
        tl.extra.cuda.gdc_launch_dependents()
    num_heads = Hq // GROUP
    pid = tl.program_id(0)
    split = pid % num_splits
    kv_head = pid // num_splits % num_heads
    b = pid // num_splits // num_heads
    _, _, _, _, _, existing = sequence(b, lengths, None, None, Lq, Lk)
    shift = Lk - Lq
    begin, _, _, stop = keys_of_block(0, Lq, shift, existing, left, right, BLOCK_N)
    share = tl.cdiv(tl.cdiv(stop - begin, BLOCK_N), num_splits) * BLOCK_N
    j_begin = begin + split * share
    j_end = tl.minimum(j_begin + share, stop)

    row = tl.arange(0, BLOCK_M)  # a head of the group, then a query
    exists = row < GROUP * Lq
    queries = tl.where(exists, row % Lq, Lq)[:, None]  # Lq: a row of no query, which reads nothing
    h = (kv_head * GROUP + row // Lq)[:, None]
    ok = exists[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    at = q + tl.cast(b, tl.int64) * q_strides[0] + h.to(tl.int64) * q_strides[1]
    at += queries.to(tl.int64) * q_strides[2] + d.to(tl.int64) * q_strides[3]
    q_tile = tl.load(at, mask=ok & (d < D), other=0.0)
    acc, total = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    logs = tl.zeros([BLOCK_M], tl.float32)
    for j0 in tl.range(j_begin, j_end, BLOCK_N):
        k_tile = load_rows(k, k_strides, b, kv_head, j0, existing, D, BLOCK_N, BLOCK_D, TMA, False)
        s = dot_fp32(q_tile, k_tile.T, BLOCK_D, BLOCK_DV)  # [BLOCK_M, BLOCK_N]
        keys = j0 + tl.arange(0, BLOCK_N)[None, :]
        s = finish_scores(
            s, queries, keys, bias, bias_strides, b, h, Lq, Lk, scale, bias_number,
            HAS_SCALE, HAS_BIAS_NUMBER,
        )
        w = tl.where(in_window(queries, keys, shift, existing, left, right), WEIGH(s), 0.0)
        if MASK != "none":
            m = load_scored(mask, mask_strides, b, h, queries, keys, Lq, Lk)
            w = tl.where(m != 0, w, 0.0) if MASK == "bool" else w * m.to(tl.float32)
        if part_sums is not None:
            total += tl.sum(w, 1)
        if LOGS:
            logs += tl.sum(w * log_of(w), 1)
        if SHRINKS:
            w *= shrink
        v_tile = load_rows(
            v, v_strides, b, kv_head, j0, existing, DV, BLOCK_N, BLOCK_DV, TMA, ENDS_EARLY
        )
        acc = add_product(acc, w, v_tile, WIDE, BLOCK_D, BLOCK_DV)
    dv = tl.arange(0, BLOCK_DV)[None, :]
    at = ((tl.cast(split, tl.int64) * B + b) * Hq + h) * Lq + queries
    tl.store(parts + at * DV + dv, acc, mask=ok & (dv < DV))
    if part_sums is not None:
        tl.store(part_sums + at, total[:, None], mask=ok)
    if LOGS:
        plane = tl.cast(num_splits, tl.int64) * B * Hq * Lq
        tl.store(part_sums + plane + at, logs[:, None], mask=ok)


@triton.jit
def combine_kernel(
    parts, o, part_sums, sums, normalizers, lengths, normalizer_strides,
    B, Hq, Lq, Lk, left, right, gain, alpha, shrink, moved, log_moved, plane, num_splits,
    NORMALIZER: tl.constexpr, POWER: tl.constexpr, BY_SUM: tl.constexpr, LOGS: tl.constexpr,
    DV: tl.constexpr, SPLITS: tl.constexpr, BLOCK_DV: tl.constexpr, CHAINED: tl.constexpr,
):
    """o_i = gain * n_i ** -alpha * sum of its parts, for one query; or as ``forward`` divides."""
    pid = tl.program_id(0)
    i = pid % Lq
    h = pid // Lq % Hq
    b = pid // Lq // Hq
    _, _, _, _, _, existing = sequence(b, lengths, None, None, Lq, Lk)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    split, dv = tl.arange(0, SPLITS)[:, None], tl.arange(0, BLOCK_DV)[None, :]
    at = parts + (tl.cast(split, tl.int64) * (B * Hq * Lq) + pid) * DV
    part = tl.load(at + dv, mask=(split < num_splits) & (dv < DV), other=0.0)
    factor = normalizer_of(
        i + tl.zeros([1], tl.int32), gain, alpha, normalizers, normalizer_strides, b, h, Lk - Lq,
        Lq, existing, Lk, left, right, NORMALIZER, POWER,
    )
    if sums is not None:
        pieces = tl.arange(0, SPLITS)
        at = part_sums + tl.cast(pieces, tl.int64) * (B * Hq * Lq) + pid
        weight = tl.sum(tl.load(at, mask=pieces < num_splits, other=0.0), 0)
        tl.store(sums + pid, weight * moved)
        if LOGS:
            at += tl.cast(num_splits, tl.int64) * (B * Hq * Lq)
            logs = tl.sum(tl.load(at, mask=pieces < num_splits, other=0.0), 0)
            tl.store(sums + plane + pid, (logs + log_moved * weight) * moved)
        if BY_SUM:
            factor = over_sum(weight, factor)
    total = tl.sum(part, 0) * (factor / shrink)
    column = tl.arange(0, BLOCK_DV)
    at = o + tl.cast(pid, tl.int64) * DV + column
    tl.store(at, total.to(o.dtype.element_ty), mask=column < DV)


def launch(
    call: Call, recorder: Recorder, o: Tensor, layout: Layout, sums: Tensor | None = None
) -> None:
    """Write the result to o, heads first: with heads last there are as many queries as keys."""
    assert layout is Layout.HEADS_FIRST
    chained = not INTERPRETED and gpu_of(o.device).family >= HOPPER_FAMILY
    arguments = call.arguments() | {"o": o, "sums": sums, "B": call.num_samples}
    arguments |= {"CHAINED": chained, "plane": call.plane_of(sums)}
    programs = call.k.shape[1] * call.num_samples
    rows = o.shape[0] * o.shape[1] * o.shape[2]

    def launch_tiles(recorder: Recorder, tiles: dict[str, Any]) -> None:
        splits = tiles["num_splits"]
        parts = recorder.empty(Role.PARTS, (splits, *o.shape), torch.float32)
        part_sums = None
        if sums is not None:
            numbers = (splits, sums.numel())  # of both kinds where there are two
            part_sums = recorder.empty(Role.PART_SUMS, numbers, torch.float32)
        shared = arguments | {
            "parts": parts, "part_sums": part_sums,
            "num_splits": splits, "SPLITS": triton.next_power_of_2(splits),
        }
        everything = call.inputs(tiles) | shared | tiles | {"q": call.q}
        options = {name: tiles[name] for name in ("num_warps", "num_stages")}
        own = only(decode_kernel, everything) | options
        recorder.launch(decode_kernel, splits * programs, own, call.roles)
        own = only(combine_kernel, shared) | {"launch_pdl": chained}
        recorder.launch(combine_kernel, rows, own)

    launch_tiles(recorder, autotuned("decode", call, launch_tiles) or decode_tiles(call))
