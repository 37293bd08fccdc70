"""What a warpgroup does with its rows of a tile, products above all; names as in ``kernel.py``.

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

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashpoint.ops.gpu.hopper.forward.producer import count_blocks
from flashpoint.ops.gpu.hopper.forward.weights import round_weights, weigh
from flashpoint.ops.gpu.hopper.qk_norm import (
    center,
    normalize_buffer,
    normalize_rows,
    root_of,
    times_gain,
)
from flashpoint.ops.gpu.hopper.tiles import (
    count_turns,
    locate_tile,
    pass_turn,
    store_async,
    take_turn,
)
from flashpoint.ops.gpu.normalizer import over_power


@gluon.jit
def take_queries(
    q_buffer, q_empty, num_rows, gain, eps, Q_NORM: gl.constexpr, ROOTS_LAST: gl.constexpr,
    D: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, LAYOUT: gl.constexpr,
):
    """Q, normalized, as products take it: q_buffer itself, or registers, its slot given back.

    If ROOTS_LAST, Q lacks r, and P x comes beside it.
    """
    q, centered = q_buffer, 0.0
    if Q_IN_REGISTERS:
        q = q_buffer.load(LAYOUT)
        fence_async_shared()
        mbarrier.arrive(q_empty, count=1)
        if ROOTS_LAST:
            x = q.to(gl.float32)
            centered = center(x, gl.sum(x, 1) / D, Q_NORM, D)
            q = times_gain(centered, gain, D).to(q.dtype)
        elif Q_NORM != "none":
            exists = gl.arange(0, q.shape[0], gl.SliceLayout(1, LAYOUT)) < num_rows
            q = normalize_rows(q, exists, gain, eps, Q_NORM, D)
    elif Q_NORM != "none":
        normalize_buffer(q_buffer, num_rows, gain, eps, Q_NORM, D)
    return q, centered


@gluon.jit
def issue_scores(q, k_buffers, k_full, block, KEYS: gl.constexpr):
    """Start S = Q K_block^T of the first KEYS; q: [ROWS, D] in shared memory or registers."""
    STAGES: gl.constexpr = k_buffers.shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    stage = block % STAGES
    mbarrier.wait(k_full.index(stage), block // STAGES & 1)
    k = k_buffers.index(stage).reshape([k_buffers.shape[3], k_buffers.shape[4]]).slice(0, KEYS)
    zeros = gl.full([q.shape[0], KEYS], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(q, k.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def issue_outputs(weights, v_buffers, v_full, block, acc):
    """Start O += W V_block; weights: [ROWS, KEYS] in registers, of the block's first KEYS."""
    STAGES: gl.constexpr = v_buffers.shape[0]
    stage = block % STAGES
    mbarrier.wait(v_full.index(stage), block // STAGES & 1)
    v = v_buffers.index(stage).reshape([v_buffers.shape[3], v_buffers.shape[4]])
    return warpgroup_mma(weights, v.slice(0, weights.shape[1]), acc, is_async=True)


@gluon.jit
def add_block(
    now, step, q, weights, acc, limits, scale, bias_number, shrink, k_buffers, v_buffers, barriers,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, MASKED: gl.constexpr, SCHEDULE: gl.constexpr,
    KEYS: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Block number ``now``, a tile's step-th: takes W of the one before, gives W of its KEYS.

    SCHEDULE, from few registers to many; the other warpgroups fill the gaps that are left:
        serial   one product after the other
        paired   S of this step and O of the last one are in flight together
        overlap  as paired, and W of this step is computed while O of the last one still runs
        turns    as overlap, and the warpgroups start their products in turn
    """
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    STAGES: gl.constexpr = k_buffers.shape[0]
    DTYPE: gl.constexpr = weights.dtype
    W_LAYOUT: gl.constexpr = weights.type.layout
    OVERLAPS: gl.constexpr = SCHEDULE == "overlap" or SCHEDULE == "turns"
    if SCHEDULE == "serial":
        acc = issue_outputs(weights, v_buffers, v_full, now - 1, acc)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index((now - 1) % STAGES), count=1)
    take_turn(turns, now, SCHEDULE, CONSUMER)
    scores = issue_scores(q, k_buffers, k_full, now, KEYS)
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
    return next_weights, acc


@gluon.jit
def add_blocks(
    first, last, block, q, weights, acc, limits, scale, bias_number, shrink,
    k_buffers, v_buffers, barriers,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, MASKED: gl.constexpr, SCHEDULE: gl.constexpr,
    CONSUMER: gl.constexpr,
):
    """Steps first <= step < last, step 0 being that of number ``block``; O lags behind."""
    for step in range(first, last):
        weights, acc = add_block(
            block + step, step, q, weights, acc, limits, scale, bias_number, shrink,
            k_buffers, v_buffers, barriers,
            WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, MASKED, SCHEDULE,
            k_buffers.shape[3], CONSUMER,
        )
    return weights, acc


@gluon.jit
def give_back(
    first, last, barriers, STAGES: gl.constexpr, SCHEDULE: gl.constexpr, CONSUMER: gl.constexpr
):
    """Let blocks first <= block < last pass, which only other warpgroups see."""
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    for unseen in range(first, last):
        stage = unseen % STAGES
        take_turn(turns, unseen, SCHEDULE, CONSUMER)
        pass_turn(turns, SCHEDULE, CONSUMER)
        mbarrier.wait(k_full.index(stage), unseen // STAGES & 1)
        mbarrier.arrive(k_empty.index(stage), count=1)
        mbarrier.wait(v_full.index(stage), unseen // STAGES & 1)
        mbarrier.arrive(v_empty.index(stage), count=1)


@gluon.jit
def finish_outputs(
    acc, factor, limits, alpha, POWER: gl.constexpr, ROOTS_LAST: gl.constexpr
):
    """O times the factor, of each row if ROOTS_LAST, over a power of how many keys it sees."""
    if POWER != "none":
        seen = gl.maximum(limits, 1).to(gl.float32)
        layout: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
        seen = gl.convert_layout(seen, layout, assert_trivial=True)
        factor = over_power(factor, seen, alpha, POWER)
    if POWER != "none" or ROOTS_LAST:
        factor = factor[:, None]
    return acc * factor


@gluon.jit
def consume(
    descriptors, buffers, barriers, sizes, norms, gain, alpha, scale, bias_number, shrink,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, POWER: gl.constexpr,
    Q_NORM: gl.constexpr, ROOTS_LAST: gl.constexpr, D: gl.constexpr, PIECE: gl.constexpr,
    SCHEDULE: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile.

    The last block has PIECE keys, or as many as others where that is 0.
    """
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
        # without rows, others take the rest
        own_blocks = gl.where(first_row < Lq, own_blocks, 2 if PIECE > 0 else 1)
        # limits: [ROWS], how many keys each row sees
        rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        limits = gl.minimum(rows + 1 + Lk - Lq, Lk)
        whole_blocks = own_blocks
        if CAUSAL:
            whole_blocks = gl.maximum(first_row + 1 + Lk - Lq, 0) // BLOCK_KEYS
            whole_blocks = gl.minimum(whole_blocks, own_blocks)
        if PIECE > 0:
            whole_blocks -= 1

        mbarrier.wait(q_full.index(CONSUMER), turn & 1)
        q, centered = take_queries(
            q_buffer, q_empty.index(CONSUMER), Lq - first_row, q_gain, q_eps,
            Q_NORM, ROOTS_LAST, D, Q_IN_REGISTERS, gl.DotOperandLayout(0, S_LAYOUT, 2),
        )
        take_turn(turns, block, SCHEDULE, CONSUMER)
        scores = issue_scores(q, k_buffers, k_full, block, BLOCK_KEYS)
        pass_turn(turns, SCHEDULE, CONSUMER)
        factor = gain / shrink if SHRINKS else gain
        if ROOTS_LAST:
            roots = root_of(centered, q_eps, D)
            roots = gl.convert_layout(roots, gl.SliceLayout(1, O_LAYOUT), assert_trivial=True)
            factor = factor * roots
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
            WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, False, SCHEDULE, CONSUMER,
        )
        if CAUSAL:
            weights, acc = add_blocks(
                gl.maximum(whole_blocks, 1), own_blocks, block, q, weights, acc, limits,
                scale, bias_number, shrink, k_buffers, v_buffers, barriers,
                WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM, True, SCHEDULE, CONSUMER,
            )
        last = block + own_blocks - 1
        if PIECE > 0:
            weights, acc = add_block(
                last, own_blocks - 1, q, weights, acc, limits, scale, bias_number, shrink,
                k_buffers, v_buffers, barriers, WEIGH, HAS_SCALE, HAS_BIAS_NUMBER, SHRINKS, FORM,
                False, "turns" if SCHEDULE == "turns" else "overlap", PIECE, CONSUMER,
            )
        if not Q_IN_REGISTERS:
            mbarrier.arrive(q_empty.index(CONSUMER), count=1)
        acc = issue_outputs(weights, v_buffers, v_full, last, acc)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(last % STAGES), count=1)
        give_back(last + 1, block + tile_blocks, barriers, STAGES, SCHEDULE, CONSUMER)
        block += tile_blocks

        acc = finish_outputs(acc, factor, limits, alpha, POWER, ROOTS_LAST)
        tma.store_wait(0)  # the last tile's store has read o_buffer
        o_buffer.reshape([ROWS, BLOCK_D]).store(acc.to(DTYPE))
        fence_async_shared()
        # rows from Lq on are clipped
        store_async(o_rows, [batch, head, first_row, 0], o_buffer)
    tma.store_wait(0)
