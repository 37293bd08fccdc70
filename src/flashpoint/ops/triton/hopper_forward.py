"""Forward for Hopper (sm_90a) in Gluon: the copy engine, asynchronous products, warps with roles.

One producer warp loads Q, K and V; NUM_CONSUMERS warpgroups own ROWS queries each:

    S = Q K^T  (wgmma)  ->  W = h(S), in registers  ->  O += W V  (wgmma, W its register operand)

Barriers are those of ``hopper_tiles``. No circle of waits: the producer's order is Q, K_0, V_0,
K_1, V_1, ... A consumer that waits for K_t has released all V before V_{t-1} and all K before K_t;
one that waits for V_{t-1} has released all V before it and all K before K_t. What it waits for
stands in the producer's order behind blocks that need only those released slots, for every STAGES
>= 1. Q has one slot per warpgroup, the same two barriers with one arrival each, and the tile's
number in place of t.

Turns. Warpgroups that start products together wait for them together, then compute weights
together, while the tensor cores idle. By schedule "turns", warpgroup w starts the products of
block t in its turn (t, w), then passes it on: (0, 0), (0, 1), ..., (1, 0), (1, 1), ...; of blocks
that it does not see it only passes the turn on. turns[w] has one arrival, the predecessor's, which
ends phase t; one before all others stands in for that of (0, 0). A predecessor two turns ahead
would have taken one behind w's: no waiter is two phases behind. No circle of waits: of all turns
not yet passed on, take the first, (t, w). Nothing holds back w but Q, K_t and V up to V_{t-1},
whose slots the others give back behind their turns up to t - 1, which they have had. Turns order
work, no data.
"""

from typing import Any, NamedTuple

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

from flashpoint.ops.triton.hopper_activations import form_of, round_weights, weigh
from flashpoint.ops.triton.hopper_norm import normalise_buffer
from flashpoint.ops.triton.hopper_tiles import (
    NORM_REGISTERS,
    REGISTERS,
    REGISTERS_NORMED,
    count_turns,
    describe,
    locate_tile,
    make_barriers,
    pass_turn,
    take_turn,
)
from flashpoint.ops.triton.packed_norm import NO_NORMS
from flashpoint.ops.triton.problem import Problem, block_of
from flashpoint.ops.triton.replay import Recorder, only
from flashpoint.ops.triton.tiles import over_power


@gluon.jit
def count_blocks(last_row, sizes, BLOCK_KEYS: gl.constexpr, CAUSAL: gl.constexpr):
    """Key blocks that rows up to last_row see, at least 1: one out of sight is masked whole."""
    B, H, group, row_tiles, Lq, Lk = sizes
    keys = Lk
    if CAUSAL:
        keys = gl.maximum(gl.minimum(last_row + 1 + Lk - Lq, Lk), 1)
    return gl.cdiv(keys, BLOCK_KEYS)


@gluon.jit
def produce(descriptors, buffers, barriers, sizes, CAUSAL: gl.constexpr):
    """Producer warp: per tile Q for every consumer, then K_0, V_0, K_1, V_1, ..."""
    q, k, v, o = descriptors
    q_buffers, k_buffers, v_buffers, o_buffers = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    B, H, group, row_tiles, Lq, Lk = sizes
    STAGES: gl.constexpr = k_buffers.shape[0]
    BLOCK_KEYS: gl.constexpr = k.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = q_buffers.shape[0]
    ROWS: gl.constexpr = q.block_shape[2]
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, row_tiles, CAUSAL, True)
        batch, head = batch_head // H, batch_head % H
        first_row = row_tile * BLOCK_ROWS
        for consumer in gl.static_range(NUM_CONSUMERS):
            full = q_full.index(consumer)
            mbarrier.wait(q_empty.index(consumer), (turn & 1) ^ 1)
            mbarrier.expect(full, q.block_type.nbytes)
            at = [batch, head, first_row + consumer * ROWS, 0]
            tma.async_copy_global_to_shared(q, at, full, q_buffers.index(consumer))
        last_row = gl.minimum(first_row + BLOCK_ROWS, Lq) - 1
        for step in range(count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)):
            stage = block % STAGES
            parity = (block // STAGES & 1) ^ 1
            at = [batch, head // group, step * BLOCK_KEYS, 0]
            mbarrier.wait(k_empty.index(stage), parity)
            mbarrier.expect(k_full.index(stage), k.block_type.nbytes)
            tma.async_copy_global_to_shared(k, at, k_full.index(stage), k_buffers.index(stage))
            mbarrier.wait(v_empty.index(stage), parity)
            mbarrier.expect(v_full.index(stage), v.block_type.nbytes)
            tma.async_copy_global_to_shared(v, at, v_full.index(stage), v_buffers.index(stage))
            block += 1


@gluon.jit
def normalise_keys(
    descriptors, buffers, k_full, k_ready, sizes, norms,
    CAUSAL: gl.constexpr, K_NORM: gl.constexpr, D: gl.constexpr,
):
    """Warpgroup between producer and consumers: every block of K becomes K-hat where it lies."""
    q, k, v, o = descriptors
    q_buffers, k_buffers, v_buffers, o_buffers = buffers
    q_gain, k_gain, q_eps, k_eps = norms
    B, H, group, row_tiles, Lq, Lk = sizes
    STAGES: gl.constexpr = k_buffers.shape[0]
    BLOCK_KEYS: gl.constexpr = k.block_shape[2]
    BLOCK_ROWS: gl.constexpr = q.block_shape[2] * q_buffers.shape[0]
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, row_tiles, CAUSAL, True)
        last_row = gl.minimum((row_tile + 1) * BLOCK_ROWS, Lq) - 1
        for step in range(count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)):
            stage = block % STAGES
            mbarrier.wait(k_full.index(stage), block // STAGES & 1)
            buffer = k_buffers.index(stage).reshape([BLOCK_KEYS, k_buffers.shape[4]])
            normalise_buffer(buffer, Lk - step * BLOCK_KEYS, k_gain, k_eps, K_NORM, D)
            mbarrier.arrive(k_ready.index(stage), count=1)
            block += 1


@gluon.jit
def issue_scores(q, k_buffers, k_full, block, S_LAYOUT: gl.constexpr):
    """Start S = Q K_block^T; q: [ROWS, D] in shared memory or registers."""
    STAGES: gl.constexpr = k_buffers.shape[0]
    BLOCK_KEYS: gl.constexpr = k_buffers.shape[3]
    BLOCK_D: gl.constexpr = k_buffers.shape[4]
    stage = block % STAGES
    mbarrier.wait(k_full.index(stage), block // STAGES & 1)
    k = k_buffers.index(stage).reshape([BLOCK_KEYS, BLOCK_D])
    zeros = gl.full([q.shape[0], BLOCK_KEYS], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(q, k.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def issue_outputs(weights, v_buffers, v_full, block, acc):
    """Start O += W V_block; weights: [ROWS, BLOCK_KEYS] in registers."""
    STAGES: gl.constexpr = v_buffers.shape[0]
    stage = block % STAGES
    mbarrier.wait(v_full.index(stage), block // STAGES & 1)
    v = v_buffers.index(stage).reshape([v_buffers.shape[3], v_buffers.shape[4]])
    return warpgroup_mma(weights, v, acc, is_async=True)


@gluon.jit
def add_blocks(
    first, last, block, q, weights, acc, limits, scale, bias_number, shrink,
    k_buffers, v_buffers, barriers,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, MASKED: gl.constexpr, SCHEDULE: gl.constexpr,
    S_LAYOUT: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Steps first <= step < last: takes W of the step before, leaves W of the last; O lags behind.

    SCHEDULE, from few registers to many; the other warpgroups fill the gaps that are left:
        serial   one product after the other
        paired   S of this step and O of the last one are in flight together
        overlap  as paired, and W of this step is computed while O of the last one still runs
        turns    as overlap, and the warpgroups start their products in turn
    ``block`` is the number of step 0.
    """
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    STAGES: gl.constexpr = k_buffers.shape[0]
    DTYPE: gl.constexpr = weights.dtype
    W_LAYOUT: gl.constexpr = weights.type.layout
    OVERLAPS: gl.constexpr = SCHEDULE == "overlap" or SCHEDULE == "turns"
    for step in range(first, last):
        now = block + step
        if SCHEDULE == "serial":
            acc = issue_outputs(weights, v_buffers, v_full, now - 1, acc)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_empty.index((now - 1) % STAGES), count=1)
        take_turn(turns, now, SCHEDULE, CONSUMER)
        scores = issue_scores(q, k_buffers, k_full, now, S_LAYOUT)
        if SCHEDULE != "serial":
            acc = issue_outputs(weights, v_buffers, v_full, now - 1, acc)
        pass_turn(turns, SCHEDULE, CONSUMER)
        if OVERLAPS:
            scores = warpgroup_mma_wait(1, deps=[scores])
        else:
            acc, scores = warpgroup_mma_wait(0, deps=[acc, scores])
        mbarrier.arrive(k_empty.index(now % STAGES), count=1)
        next_weights = weigh(
            scores, limits, step, scale, bias_number, shrink,
            WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, MASKED,
        )
        if SCHEDULE != "turns":
            next_weights = round_weights(next_weights, FORM, DTYPE, W_LAYOUT)
        else:  # this wait returns at once; without its branch, ptxas moves h behind the next one
            mbarrier.wait(v_full.index((now - 1) % STAGES), (now - 1) // STAGES & 1)
        if OVERLAPS:  # the product reads the registers of weights until here
            acc, weights, next_weights = warpgroup_mma_wait(0, deps=[acc, weights, next_weights])
        if SCHEDULE == "turns":  # into those registers
            next_weights = round_weights(next_weights, FORM, DTYPE, W_LAYOUT)
        if SCHEDULE != "serial":
            mbarrier.arrive(v_empty.index((now - 1) % STAGES), count=1)
        weights = next_weights
    return weights, acc


@gluon.jit
def consume(
    descriptors, buffers, barriers, sizes, norms, gain, alpha, scale, bias_number, shrink,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, POWER: gl.constexpr,
    Q_NORM: gl.constexpr, D: gl.constexpr,
    SCHEDULE: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile."""
    q_rows, k_rows, v_rows, o_rows = descriptors
    q_buffers, k_buffers, v_buffers, o_buffers = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    B, H, group, row_tiles, Lq, Lk = sizes
    q_gain, k_gain, q_eps, k_eps = norms
    DTYPE: gl.constexpr = q_rows.dtype
    STAGES: gl.constexpr = k_buffers.shape[0]
    BLOCK_KEYS: gl.constexpr = k_rows.block_shape[2]
    BLOCK_D: gl.constexpr = k_rows.block_shape[3]
    ROWS: gl.constexpr = q_rows.block_shape[2]
    BLOCK_ROWS: gl.constexpr = ROWS * q_buffers.shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    q_buffer = q_buffers.index(CONSUMER).reshape([ROWS, BLOCK_D])
    o_buffer = o_buffers.index(CONSUMER)
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, row_tiles, CAUSAL, True)
        batch, head = batch_head // H, batch_head % H
        tile_row = row_tile * BLOCK_ROWS
        first_row = tile_row + CONSUMER * ROWS
        last_row = gl.minimum(tile_row + BLOCK_ROWS, Lq) - 1
        tile_blocks = count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)
        own_blocks = count_blocks(first_row + ROWS - 1, sizes, BLOCK_KEYS, CAUSAL)
        own_blocks = gl.minimum(own_blocks, tile_blocks)
        # limits: [ROWS], how many keys each row sees
        rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        limits = gl.minimum(rows + 1 + Lk - Lq, Lk)
        whole_blocks = own_blocks
        if CAUSAL:
            whole_blocks = gl.maximum(first_row + 1 + Lk - Lq, 0) // BLOCK_KEYS
            whole_blocks = gl.minimum(whole_blocks, own_blocks)

        mbarrier.wait(q_full.index(CONSUMER), turn & 1)
        if Q_NORM != "none":
            normalise_buffer(q_buffer, Lq - first_row, q_gain, q_eps, Q_NORM, D)
        q = q_buffer
        if Q_IN_REGISTERS:
            q = q_buffer.load(gl.DotOperandLayout(0, S_LAYOUT, 2))
            fence_async_shared()
            mbarrier.arrive(q_empty.index(CONSUMER), count=1)
        take_turn(turns, block, SCHEDULE, CONSUMER)
        scores = issue_scores(q, k_buffers, k_full, block, S_LAYOUT)
        pass_turn(turns, SCHEDULE, CONSUMER)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(block % STAGES), count=1)
        weights = weigh(
            scores, limits, 0, scale, bias_number, shrink,
            WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, CAUSAL,
        )
        weights = round_weights(weights, FORM, DTYPE, W_LAYOUT)
        acc = gl.full([ROWS, BLOCK_D], 0.0, gl.float32, O_LAYOUT)
        weights, acc = add_blocks(
            1, whole_blocks, block, q, weights, acc, limits, scale, bias_number, shrink,
            k_buffers, v_buffers, barriers,
            WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, False, SCHEDULE, S_LAYOUT, CONSUMER,
        )
        if CAUSAL:
            weights, acc = add_blocks(
                gl.maximum(whole_blocks, 1), own_blocks, block, q, weights, acc, limits,
                scale, bias_number, shrink, k_buffers, v_buffers, barriers,
                WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, True, SCHEDULE, S_LAYOUT,
                CONSUMER,
            )
        if not Q_IN_REGISTERS:
            mbarrier.arrive(q_empty.index(CONSUMER), count=1)
        last = block + own_blocks - 1
        acc = issue_outputs(weights, v_buffers, v_full, last, acc)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(last % STAGES), count=1)
        for unseen in range(block + own_blocks, block + tile_blocks):  # others' blocks: give back
            stage = unseen % STAGES
            take_turn(turns, unseen, SCHEDULE, CONSUMER)
            pass_turn(turns, SCHEDULE, CONSUMER)
            mbarrier.wait(k_full.index(stage), unseen // STAGES & 1)
            mbarrier.arrive(k_empty.index(stage), count=1)
            mbarrier.wait(v_full.index(stage), unseen // STAGES & 1)
            mbarrier.arrive(v_empty.index(stage), count=1)
        block += tile_blocks

        factor = gain / shrink if SHRINKS else gain
        if POWER != "none":
            seen = gl.maximum(limits, 1).to(gl.float32)
            seen = gl.convert_layout(seen, gl.SliceLayout(1, O_LAYOUT), assert_trivial=True)
            factor = over_power(factor, seen, alpha, POWER)[:, None]
        acc *= factor
        tma.store_wait(0)  # the last tile's store has read o_buffer
        o_buffer.reshape([ROWS, BLOCK_D]).store(acc.to(DTYPE))
        fence_async_shared()
        # rows from Lq on are clipped
        tma.async_copy_shared_to_global(o_rows, [batch, head, first_row, 0], o_buffer)
    tma.store_wait(0)


@gluon.jit
def work(
    descriptors, buffers, barriers, k_ready, sizes, norms, gain, alpha, scale, bias_number, shrink,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, POWER: gl.constexpr,
    Q_NORM: gl.constexpr, K_NORM: gl.constexpr, D: gl.constexpr,
    SCHEDULE: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, WARPGROUP: gl.constexpr,
):
    """Consumers are warpgroups 0 to NUM_CONSUMERS - 1; after them who normalises, if K has a norm.

    The producer is the last.
    """
    NUM_CONSUMERS: gl.constexpr = buffers[0].shape[0]
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    if WARPGROUP < NUM_CONSUMERS:
        ready = (q_full, q_empty, k_ready, k_empty, v_full, v_empty, turns)
        consume(
            descriptors, buffers, ready, sizes, norms, gain, alpha, scale, bias_number, shrink,
            WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, CAUSAL, POWER, Q_NORM, D,
            SCHEDULE, Q_IN_REGISTERS, WARPGROUP,
        )
    elif WARPGROUP == NUM_CONSUMERS and K_NORM != "none":
        normalise_keys(
            descriptors, buffers, k_full, k_ready, sizes, norms, CAUSAL, K_NORM, D
        )
    else:
        produce(descriptors, buffers, barriers, sizes, CAUSAL)


@gluon.jit(do_not_specialize=["B", "Hq", "group", "row_tiles", "Lq", "Lk"])
def hopper_forward_kernel(
    q, k, v, o,                                    # descriptors, blocks [1, 1, rows, BLOCK_D]
    q_gain, k_gain,                                # pointers or None
    B, Hq, group, row_tiles, Lq, Lk, q_eps, k_eps, gain, alpha, scale, bias_number, shrink,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, POWER: gl.constexpr,
    NUM_CONSUMERS: gl.constexpr, STAGES: gl.constexpr, SCHEDULE: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    Q_NORM: gl.constexpr, K_NORM: gl.constexpr, D: gl.constexpr,
):
    """o_i = gain * n_i ** -alpha * sum_j h(scale * q_i . k_j + b) v_j; for any grid."""
    DTYPE: gl.constexpr = q.dtype
    q_buffers = gl.allocate_shared_memory(DTYPE, [NUM_CONSUMERS] + q.block_shape, q.layout)
    o_buffers = gl.allocate_shared_memory(DTYPE, [NUM_CONSUMERS] + o.block_shape, o.layout)
    k_buffers = gl.allocate_shared_memory(DTYPE, [STAGES] + k.block_shape, k.layout)
    v_buffers = gl.allocate_shared_memory(DTYPE, [STAGES] + v.block_shape, v.layout)
    q_full, q_empty = make_barriers(NUM_CONSUMERS, 1), make_barriers(NUM_CONSUMERS, 1)
    k_full, k_empty = make_barriers(STAGES, 1), make_barriers(STAGES, NUM_CONSUMERS)
    v_full, v_empty = make_barriers(STAGES, 1), make_barriers(STAGES, NUM_CONSUMERS)
    k_ready = k_full
    if K_NORM != "none":
        k_ready = make_barriers(STAGES, 1)
    turns = q_full
    if SCHEDULE == "turns":
        turns = make_barriers(NUM_CONSUMERS, 1)
        mbarrier.arrive(turns.index(0), count=1)
    fence_async_shared()

    descriptors = (q, k, v, o)
    buffers = (q_buffers, k_buffers, v_buffers, o_buffers)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns)
    sizes = (B, Hq, group, row_tiles, Lq, Lk)
    norms = (q_gain, k_gain, q_eps, k_eps)
    NORMALISERS: gl.constexpr = 1 if K_NORM != "none" else 0
    gl.warp_specialize(
        [
            (
                work,
                (
                    descriptors, buffers, barriers, k_ready, sizes, norms,
                    gain, alpha, scale, bias_number, shrink, WEIGH,
                    HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, CAUSAL, POWER,
                    Q_NORM, K_NORM, D, SCHEDULE, Q_IN_REGISTERS, warpgroup,
                ),
            )
            for warpgroup in (0, 1, 2, 3, 4, 5)[:NUM_CONSUMERS + NORMALISERS + 1]
        ],
        [4] * (NUM_CONSUMERS - 1 + NORMALISERS) + [1],
        [CONSUMER_REGISTERS] * (NUM_CONSUMERS - 1) + [NORM_REGISTERS] * NORMALISERS + [24],
    )


class Config(NamedTuple):
    """How the kernel divides its work.

    Attributes:
        block_keys: keys per step.
        rows: queries per warpgroup, 64 or 128.
        consumers: warpgroups; a tile has rows * consumers queries.
        stages: length of the rings of K and of V.
        schedule: as ``add_blocks`` explains.
    """

    block_keys: int
    rows: int
    consumers: int
    stages: int
    schedule: str
    q_in_registers: bool


# by BLOCK_D and causality, measured on an H200: docs/log.md
CONFIGS = {
    (64, False): Config(64, 128, 2, 4, "overlap", True),
    (64, True): Config(64, 128, 2, 4, "overlap", False),
    (128, False): Config(128, 64, 2, 2, "paired", True),
    (128, True): Config(64, 64, 2, 4, "overlap", True),
}
# for activations that special functions hold up
TURNS = {
    (64, False): Config(128, 64, 2, 3, "turns", True),
    (64, True): Config(64, 64, 3, 4, "turns", True),
    (128, False): Config(128, 64, 2, 2, "turns", True),
    (128, True): Config(64, 64, 2, 4, "turns", True),
}
IN_TURNS = ("sigmoid", "silu")
NORMED = Config(64, 128, 2, 4, "paired", False)  # where K has a norm
NORMED_DIM = 64  # BLOCK_D of calls with norms


def takes_norms(problem: Problem) -> bool:
    """True where the kernel can normalise q and k of a call."""
    return block_of(problem.q.shape[3]) == NORMED_DIM


def launch_hopper_forward(
    problem: Problem, recorder: Recorder, o: Tensor, norms: dict[str, Any] = NO_NORMS
) -> None:
    """Write the result to o."""
    causal = problem.terms.right is not None
    activation = problem.terms.activation
    configs = TURNS if activation in IN_TURNS else CONFIGS
    config = configs[block_of(problem.q.shape[3]), causal]
    has_norm = norms["K_NORM"] != "none"
    if has_norm:
        config = NORMED
    row_tiles = -(-problem.num_queries // (config.rows * config.consumers))
    tiles = row_tiles * problem.q_heads * problem.num_samples
    processors = torch.cuda.get_device_properties(o.device).multi_processor_count
    arguments = only(hopper_forward_kernel, problem.arguments() | norms)
    arguments |= form_of(activation, arguments)
    registers = (REGISTERS_NORMED if has_norm else REGISTERS)[config.consumers]
    recorder.launch(hopper_forward_kernel, min(tiles, processors), arguments | {
        "q": describe(problem.q, config.rows),
        "k": describe(problem.k, config.block_keys),
        "v": describe(problem.v, config.block_keys),
        "o": describe(o, config.rows),
        "B": problem.num_samples, "group": problem.group, "row_tiles": row_tiles,
        "CAUSAL": causal, "NUM_CONSUMERS": config.consumers, "STAGES": config.stages,
        "SCHEDULE": config.schedule, "Q_IN_REGISTERS": config.q_in_registers,
        "CONSUMER_REGISTERS": registers, "num_warps": 4,
    })
