"""Backward for Hopper (sm_90a) in Gluon, built like ``hopper_forward``; formulas in ``backward``.

One kernel for both sides of the score matrix: a program keeps row blocks a, b in shared memory
and streams column blocks c, d past them.

    SIDE keys     a = k, b = v,   c = q, d = do,  da = dk, db = dv   (4 products)
    SIDE queries  a = q, b = do,  c = k, d = v,   da = dq            (3 products)

    S = a c^T, dW = b d^T  (wgmma)  ->  W = h(S), dS = dW h'(S), in registers
                                    ->  da += dS c, db += W d  (wgmma, register operands)

Barriers are those of ``hopper_tiles``; c and d have their own, and the producer's order is rows,
c_0, d_0, c_1, d_1, ... No circle of waits: a consumer that waits for c_t or d_t has released all
before them. Rows have two slots per warpgroup, the same two barriers with one arrival each, and
the tile's number in place of t. Gradients leave through their rows' slots, which are released at
the start of the next tile, once the stores have read them.

Every tile starts at the diagonal, so that its first loop, over masked blocks, runs at least once
and the compiler knows it. That is not for speed: where the first of two loops may run zero times,
ptxas 12.8 reuses what it computed ahead of it (descriptors of a and b) in the second one.
"""

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashpoint.ops.triton.activations import is_builtin
from flashpoint.ops.triton.hopper_tiles import (
    REGISTERS,
    count_turns,
    describe,
    locate_tile,
    make_barriers,
)
from flashpoint.ops.triton.hopper_tiles import suits as suits_forward
from flashpoint.ops.triton.hopper_weights import differentiate, find_blocks, weigh
from flashpoint.ops.triton.problem import Problem, block_of, is_regular
from flashpoint.ops.triton.replay import Recorder, only

SLOTS = gl.constexpr(2)  # tiles whose rows are in shared memory: this one's and the next one's


@gluon.jit
def load_block(block, at, buffers, full, empty, number):
    """Producer: the number-th block of a ring."""
    STAGES: gl.constexpr = buffers.shape[0]
    stage = number % STAGES
    mbarrier.wait(empty.index(stage), (number // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(stage), block.block_type.nbytes)
    tma.async_copy_global_to_shared(block, at, full.index(stage), buffers.index(stage))


@gluon.jit
def produce(
    descriptors, buffers, barriers, sizes, CAUSAL: gl.constexpr, SIDE: gl.constexpr
):
    """Producer warp: per tile the rows of every consumer, then c_0, d_0, c_1, d_1, ..."""
    a, b, c, d, da, db = descriptors
    a_buffers, b_buffers, c_buffers, d_buffers = buffers
    rows_full, rows_empty, c_full, c_empty, d_full, d_empty = barriers
    B, H, group, row_tiles, num_rows, num_columns = sizes
    BLOCK: gl.constexpr = c.block_shape[2]
    ROWS: gl.constexpr = a.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = a_buffers.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    number = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch, head, row_tile = locate_tile(turn, B, H, row_tiles, CAUSAL, SIDE == "queries")
        first_row = row_tile * BLOCK_ROWS
        for consumer in gl.static_range(NUM_CONSUMERS):
            slot = turn % SLOTS * NUM_CONSUMERS + consumer
            full = rows_full.index(slot)
            mbarrier.wait(rows_empty.index(slot), (turn // SLOTS & 1) ^ 1)
            mbarrier.expect(full, a.block_type.nbytes + b.block_type.nbytes)
            at = [batch, head, first_row + consumer * ROWS, 0]
            tma.async_copy_global_to_shared(a, at, full, a_buffers.index(slot))
            tma.async_copy_global_to_shared(b, at, full, b_buffers.index(slot))
        last_row = first_row + BLOCK_ROWS - 1
        first, last, masked = find_blocks(first_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
        column_head = head // group
        members = 1
        if SIDE == "keys":
            column_head = head * group
            members = group
        for member in range(members):
            for step in range(last - first):
                block = first + step if SIDE == "keys" else last - 1 - step
                at = [batch, column_head + member, block * BLOCK, 0]
                load_block(c, at, c_buffers, c_full, c_empty, number)
                load_block(d, at, d_buffers, d_full, d_empty, number)
                number += 1


@gluon.jit
def start_transposed(left, right, LAYOUT: gl.constexpr):
    """Start left right^T of [ROWS, D] and [BLOCK, D] in shared memory."""
    zeros = gl.full([left.shape[0], right.shape[0]], 0.0, gl.float32, LAYOUT)
    return warpgroup_mma(left, right.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def take_block(
    block, number, rows, da, db, limits, sizes, numbers, buffers, barriers,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, NORM: gl.constexpr, SIDE: gl.constexpr,
    MASKED: gl.constexpr, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """One column block: S, dW | W, dS | da, db. The other warpgroup fills the gaps."""
    a, b = rows
    a_buffers, b_buffers, c_buffers, d_buffers = buffers
    rows_full, rows_empty, c_full, c_empty, d_full, d_empty = barriers
    DTYPE: gl.constexpr = c_buffers.dtype
    STAGES: gl.constexpr = c_buffers.shape[0]
    BLOCK: gl.constexpr = c_buffers.shape[3]
    stage = number % STAGES
    parity = number // STAGES & 1
    c = c_buffers.index(stage).reshape([BLOCK, c_buffers.shape[4]])
    d = d_buffers.index(stage).reshape([BLOCK, d_buffers.shape[4]])
    first = block * BLOCK
    mbarrier.wait(c_full.index(stage), parity)
    scores = start_transposed(a, c, S_LAYOUT)
    mbarrier.wait(d_full.index(stage), parity)
    dweights = start_transposed(b, d, S_LAYOUT)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights, signs = weigh(
        scores, limits, first, sizes, numbers,
        WEIGH, FINISHES, IS_RELU, LIFTS, NORM, SIDE, MASKED, DTYPE,
    )
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    dscores = differentiate(
        dweights, signs, limits, first, sizes, numbers,
        GRADIENT, IS_RELU, LIFTS, NORM, SIDE, MASKED, DTYPE,
    )
    dscores = gl.convert_layout(dscores, W_LAYOUT, assert_trivial=True)
    da = warpgroup_mma(dscores, c, da, is_async=True)
    if SIDE == "keys":
        weights = gl.convert_layout(weights, W_LAYOUT, assert_trivial=True)
        db = warpgroup_mma(weights, d, db, is_async=True)
    da, db = warpgroup_mma_wait(0, deps=[da, db])
    mbarrier.arrive(c_empty.index(stage), count=1)
    mbarrier.arrive(d_empty.index(stage), count=1)
    return da, db


@gluon.jit
def take_head(
    tile_blocks, own_blocks, number, rows, da, db, limits, sizes, numbers, buffers, barriers,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, NORM: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """All column blocks of one head; number: that of the tile's first block."""
    rows_full, rows_empty, c_full, c_empty, d_full, d_empty = barriers
    first, last, masked = own_blocks
    tile_first, tile_last, tile_masked = tile_blocks
    STAGES: gl.constexpr = buffers[2].shape[0]
    start = 0
    if CAUSAL:
        skipped = first - tile_first if SIDE == "keys" else tile_last - last
        for unseen in range(number, number + skipped):  # others' blocks: give back
            stage = unseen % STAGES
            mbarrier.wait(c_full.index(stage), unseen // STAGES & 1)
            mbarrier.arrive(c_empty.index(stage), count=1)
            mbarrier.wait(d_full.index(stage), unseen // STAGES & 1)
            mbarrier.arrive(d_empty.index(stage), count=1)
        for step in range(masked):
            block = first + step if SIDE == "keys" else last - 1 - step
            da, db = take_block(
                block, number + skipped + step, rows, da, db, limits, sizes, numbers,
                buffers, barriers, WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, NORM, SIDE,
                True, S_LAYOUT, W_LAYOUT,
            )
        start = skipped + masked
    for step in range(start, tile_last - tile_first):
        block = tile_first + step if SIDE == "keys" else tile_last - 1 - step
        da, db = take_block(
            block, number + step, rows, da, db, limits, sizes, numbers, buffers, barriers,
            WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, NORM, SIDE,
            False, S_LAYOUT, W_LAYOUT,
        )
    return da, db


@gluon.jit
def store_rows(values, buffer, rows, at):
    """Start the store of [ROWS, D] fp32 by its buffer; rows behind the tensor's are clipped."""
    buffer.reshape(values.shape).store(values.to(rows.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(rows, at, buffer)


@gluon.jit
def consume(
    descriptors, buffers, barriers, sizes, numbers,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, NORM: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    CONSUMER: gl.constexpr,
):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile."""
    a_rows, b_rows, c_rows, d_rows, da_rows, db_rows = descriptors
    a_buffers, b_buffers, c_buffers, d_buffers = buffers
    rows_full, rows_empty, c_full, c_empty, d_full, d_empty = barriers
    scale, bias_number, lift_w, lift_ds, tail_w, tail_ds = numbers
    B, H, group, row_tiles, num_rows, num_columns = sizes
    BLOCK: gl.constexpr = c_rows.block_shape[2]
    BLOCK_D: gl.constexpr = c_rows.block_shape[3]
    ROWS: gl.constexpr = a_rows.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = a_buffers.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, D_LAYOUT, 2)
    number = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch, head, row_tile = locate_tile(turn, B, H, row_tiles, CAUSAL, SIDE == "queries")
        tile_row = row_tile * BLOCK_ROWS
        last_row = tile_row + BLOCK_ROWS - 1
        tile_blocks = find_blocks(tile_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
        first_row = tile_row + CONSUMER * ROWS
        last_row = first_row + ROWS - 1
        own_blocks = find_blocks(first_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
        # limits: [ROWS], the first column that a row meets (keys), or the end of them (queries)
        limits = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        limits += num_columns - num_rows
        members = group
        if SIDE == "queries":
            limits = gl.minimum(limits + 1, num_columns)
            members = 1

        slot = turn % SLOTS * NUM_CONSUMERS + CONSUMER
        mbarrier.wait(rows_full.index(slot), turn // SLOTS & 1)
        tma.store_wait(0)  # the last tile's stores have read their slots
        if turn > 0:
            other = (1 - turn % SLOTS) * NUM_CONSUMERS + CONSUMER
            mbarrier.arrive(rows_empty.index(other), count=1)
        a_buffer = a_buffers.index(slot)
        b_buffer = b_buffers.index(slot)
        rows = (a_buffer.reshape([ROWS, BLOCK_D]), b_buffer.reshape([ROWS, BLOCK_D]))
        da = gl.full([ROWS, BLOCK_D], 0.0, gl.float32, D_LAYOUT)
        db = gl.full([ROWS, BLOCK_D], 0.0, gl.float32, D_LAYOUT)
        for _ in range(members):
            da, db = take_head(
                tile_blocks, own_blocks, number, rows, da, db, limits, sizes, numbers,
                buffers, barriers, WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, NORM, CAUSAL, SIDE,
                S_LAYOUT, W_LAYOUT,
            )
            number += tile_blocks[1] - tile_blocks[0]

        at = [batch, head, first_row, 0]
        if SIDE == "keys":
            store_rows(db * tail_w, b_buffer, db_rows, at)
        elif NORM == "visible":
            seen = gl.maximum(limits, 1).to(gl.float32)
            seen = gl.convert_layout(seen, gl.SliceLayout(1, D_LAYOUT), assert_trivial=True)
            da /= seen[:, None]
        store_rows(da * tail_ds, a_buffer, da_rows, at)
    tma.store_wait(0)


@gluon.jit
def work(
    descriptors, buffers, barriers, sizes, numbers,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, NORM: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    WARPGROUP: gl.constexpr,
):
    """Consumers are warpgroups 0 to NUM_CONSUMERS - 1, the producer is the one after them."""
    NUM_CONSUMERS: gl.constexpr = buffers[0].shape[0] // SLOTS
    if WARPGROUP < NUM_CONSUMERS:
        consume(
            descriptors, buffers, barriers, sizes, numbers,
            WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, NORM, CAUSAL, SIDE, WARPGROUP,
        )
    else:
        produce(descriptors, buffers, barriers, sizes, CAUSAL, SIDE)


@gluon.jit(do_not_specialize=["B", "H", "group", "row_tiles", "num_rows", "num_columns"])
def hopper_backward_kernel(
    q, k, v, do, dq, dk, dv,                       # descriptors, those of other sides None
    B, H, group, row_tiles, num_rows, num_columns,  # H: heads of the rows
    scale, bias_number, lift_w, lift_ds, tail_w, tail_ds,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, NORM: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    NUM_CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):
    """dq, or dk and dv: sums of lift_ds dS and lift_w W times tails; any grid, tiles are dealt."""
    descriptors = (k, v, q, do, dk, dv) if SIDE == "keys" else (q, do, k, v, dq, dq)
    a, b, c, d, da, db = descriptors
    NUM_SLOTS: gl.constexpr = SLOTS * NUM_CONSUMERS
    a_buffers = gl.allocate_shared_memory(a.dtype, [NUM_SLOTS] + a.block_shape, a.layout)
    b_buffers = gl.allocate_shared_memory(b.dtype, [NUM_SLOTS] + b.block_shape, b.layout)
    c_buffers = gl.allocate_shared_memory(c.dtype, [STAGES] + c.block_shape, c.layout)
    d_buffers = gl.allocate_shared_memory(d.dtype, [STAGES] + d.block_shape, d.layout)
    rows_full, rows_empty = make_barriers(NUM_SLOTS, 1), make_barriers(NUM_SLOTS, 1)
    c_full, c_empty = make_barriers(STAGES, 1), make_barriers(STAGES, NUM_CONSUMERS)
    d_full, d_empty = make_barriers(STAGES, 1), make_barriers(STAGES, NUM_CONSUMERS)
    fence_async_shared()

    buffers = (a_buffers, b_buffers, c_buffers, d_buffers)
    barriers = (rows_full, rows_empty, c_full, c_empty, d_full, d_empty)
    sizes = (B, H, group, row_tiles, num_rows, num_columns)
    numbers = (scale, bias_number, lift_w, lift_ds, tail_w, tail_ds)
    gl.warp_specialize(
        [
            (
                work,
                (
                    descriptors, buffers, barriers, sizes, numbers,
                    WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, NORM, CAUSAL, SIDE, warpgroup,
                ),
            )
            for warpgroup in (0, 1, 2, 3, 4)[:NUM_CONSUMERS + 1]
        ],
        [4] * (NUM_CONSUMERS - 1) + [1],
        [CONSUMER_REGISTERS] * (NUM_CONSUMERS - 1) + [24],
    )


ROWS, NUM_CONSUMERS = 64, 2  # of a warpgroup, and how many of these
# columns per step and length of their rings, by side, BLOCK_D and causality, measured on an H200:
# docs/log.md
CONFIGS = {
    ("keys", 64, False): (128, 2),
    ("keys", 64, True): (64, 4),
    ("keys", 128, False): (64, 2),
    ("keys", 128, True): (64, 2),
    ("queries", 64, False): (128, 2),
    ("queries", 64, True): (128, 2),
    ("queries", 128, False): (64, 2),
    ("queries", 128, True): (64, 2),
}


def suits(problem: Problem, do: Tensor) -> bool:
    """True where the kernel serves the call."""
    return is_builtin(problem.terms.activation) and is_regular(do) and suits_forward(problem)


def launch_hopper_backward(
    problem: Problem, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> None:
    """Write dq, dk and dv to grads."""
    shrink, shrink_ds = arguments["shrink"], arguments["shrink_ds"]
    gain, scale = arguments["gain"], arguments["scale"]

    def numbers(lift_w: float, lift_ds: float) -> dict[str, float]:
        tails = {"tail_w": gain / lift_w, "tail_ds": scale * gain / lift_ds}
        return {"lift_w": lift_w, "lift_ds": lift_ds, **tails}

    own = numbers(shrink, shrink_ds)
    _launch_side("queries", problem, recorder, do, grads, arguments | own)
    if arguments["NORM"] == "visible" and arguments["SHRINKS"]:
        moved = 2.0 ** problem.moved_exponent()[0]  # still to come, with the gain
        own = numbers(*(moved * lift for lift in problem.row_shrinks()))
    _launch_side("keys", problem, recorder, do, grads, arguments | own)


def _launch_side(
    side: str, problem: Problem, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> None:
    causal = problem.terms.right is not None
    is_relu = problem.terms.activation == "relu"
    # others need more registers: they take the smaller of two blocks
    block, stages = CONFIGS[side, block_of(problem.q.shape[3]), causal or not is_relu]
    of_keys = side == "keys"
    dq, dk, dv = grads
    rows, columns = (problem.k, problem.q) if of_keys else (problem.q, problem.k)
    rows_of = {True: ROWS, False: block}
    row_tiles = -(-rows.shape[2] // (ROWS * NUM_CONSUMERS))
    tiles = row_tiles * rows.shape[1] * problem.num_samples
    processors = torch.cuda.get_device_properties(do.device).multi_processor_count
    recorder.launch(
        hopper_backward_kernel, min(tiles, processors), only(hopper_backward_kernel, arguments) | {
            "q": describe(problem.q, rows_of[not of_keys]),
            "k": describe(problem.k, rows_of[of_keys]),
            "v": describe(problem.v, rows_of[of_keys]),
            "do": describe(do, rows_of[not of_keys]),
            "dq": None if of_keys else describe(dq, ROWS),
            "dk": describe(dk, ROWS) if of_keys else None,
            "dv": describe(dv, ROWS) if of_keys else None,
            "B": problem.num_samples, "H": rows.shape[1], "group": problem.group,
            "row_tiles": row_tiles, "num_rows": rows.shape[2], "num_columns": columns.shape[2],
            "FINISHES": arguments["HAS_SCALE"] or arguments["HAS_BIAS_NUMBER"],
            "IS_RELU": is_relu, "LIFTS": arguments["SHRINKS"],
            "CAUSAL": causal, "SIDE": side, "NUM_CONSUMERS": NUM_CONSUMERS, "STAGES": stages,
            "CONSUMER_REGISTERS": REGISTERS[NUM_CONSUMERS], "num_warps": 4,
        })
