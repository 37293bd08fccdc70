"""Blocks of keys of a tile: their products and weights, in the order of a schedule.

Names as in ``kernel.py``.

Turns. Warpgroups that start products together wait for them together, then compute weights
together, while the tensor cores idle. By schedule "turns", warpgroup w starts the products of
block t in its turn (t, w), then passes it on, by "relay" once S is there: (0, 0), (0, 1), ...,
(1, 0), (1, 1), ...; of blocks that it does not see it only passes the turn on. turns[w] has one
arrival, the predecessor's, which ends phase t; one before all others stands in for that of
(0, 0). A predecessor two turns ahead would have taken one behind w's: no waiter is two phases
behind. No circle of waits: of all turns not yet passed on, take the first, (t, w). Nothing holds
back w but Q, K_t and V up to V_{t-1}, whose slots the others give back behind their turns up to
t - 1, which they have had. Turns order work, no data.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from flashpoint.ops.gpu.hopper.forward.weights import add_sums, round_weights, weigh
from flashpoint.ops.gpu.hopper.pieces import (
    cut_pieces,
    start_products,
    start_transposed,
    view_pieces,
    wait_for,
)
from flashpoint.ops.gpu.hopper.tiles import pass_turn, take_turn


@gluon.jit
def issue_scores(q, keys, block, KEYS: gl.constexpr):
    """Start S = Q K_block^T of the first KEYS; q: [ROWS, D] in shared memory or registers."""
    STAGES: gl.constexpr = keys.full.shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    stage = block % STAGES
    mbarrier.wait(keys.full.index(stage), block // STAGES & 1)
    k = view_pieces(keys.buffers, stage, len(q))
    return start_transposed(q, cut_pieces(k, 0, KEYS), S_LAYOUT)


@gluon.jit
def issue_outputs(weights, values, block, acc):
    """Start O += W V_block; weights: [ROWS, KEYS] in registers, of the block's first KEYS."""
    STAGES: gl.constexpr = values.full.shape[0]
    stage = block % STAGES
    mbarrier.wait(values.full.index(stage), block // STAGES & 1)
    v = view_pieces(values.buffers, stage, len(acc))
    return start_products(weights, cut_pieces(v, 0, weights.shape[1]), acc)


@gluon.jit
def pin(values, block):
    """Keep ptxas from moving what stands above behind the next wait: a branch does.

    V_block is there, since its product runs, so that this wait returns at once.
    """
    STAGES: gl.constexpr = values.full.shape[0]
    mbarrier.wait(values.full.index(block % STAGES), block // STAGES & 1)


@gluon.jit
def add_block(
    now, step, q, weights, acc, sums, limits, program,
    MASKED: gl.constexpr, SCHEDULE: gl.constexpr, KEYS: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Block number ``now``, a tile's step-th: takes W of the one before, gives W of its KEYS.

    SCHEDULE, from few registers to many; the other warpgroups fill the gaps that are left:
        serial   one product after the other
        paired   S of this step and O of the last one are in flight together
        overlap  as paired, and W of this step is computed while O of the last one still runs
        pinned   as overlap, and ptxas cannot move W behind the wait for O
        turns    as pinned, and the warpgroups start their products in turn
        relay    as turns, and the turn is passed on when S is there, not when it is started
    There is a further one, "deep" (``add_block_deeply``): O of the last block and S of the next
    one both run while W is computed.
    """
    keys, values, turns, options = program.keys, program.values, program.turns, program.options
    STAGES: gl.constexpr = keys.full.shape[0]
    FORM: gl.constexpr = options.FORM
    DTYPE: gl.constexpr = weights.dtype
    W_LAYOUT: gl.constexpr = weights.type.layout
    HAS_TURNS: gl.constexpr = SCHEDULE == "turns" or SCHEDULE == "relay"
    IS_PINNED: gl.constexpr = SCHEDULE == "pinned" or HAS_TURNS
    OVERLAPS: gl.constexpr = SCHEDULE == "overlap" or IS_PINNED
    if SCHEDULE == "serial":
        acc = issue_outputs(weights, values, now - 1, acc)
        acc, _ = wait_for(acc, (), 0)
        mbarrier.arrive(values.empty.index((now - 1) % STAGES), count=1)
    take_turn(turns, now, SCHEDULE, CONSUMER)
    scores = issue_scores(q, keys, now, KEYS)
    if SCHEDULE != "serial":
        acc = issue_outputs(weights, values, now - 1, acc)
    if SCHEDULE == "turns":
        pass_turn(turns, SCHEDULE, CONSUMER)
    if OVERLAPS:
        scores = warpgroup_mma_wait(len(acc), deps=[scores])
    else:
        acc, others = wait_for(acc, (scores,), 0)
        scores = others[0]
    if SCHEDULE == "relay":
        pass_turn(turns, SCHEDULE, CONSUMER)
    mbarrier.arrive(keys.empty.index(now % STAGES), count=1)
    next_weights = weigh(scores, limits, step, program.numbers, options, MASKED)
    sums = add_sums(sums, next_weights, options)
    if not IS_PINNED:
        next_weights = round_weights(next_weights, FORM, DTYPE, W_LAYOUT)
    else:
        pin(values, now - 1)
    if OVERLAPS:  # the product reads the registers of weights until here
        acc, others = wait_for(acc, (weights, next_weights), 0)
        weights, next_weights = others
    if IS_PINNED:  # into those registers
        next_weights = round_weights(next_weights, FORM, DTYPE, W_LAYOUT)
    if SCHEDULE != "serial":
        mbarrier.arrive(values.empty.index((now - 1) % STAGES), count=1)
    return next_weights, acc, sums


@gluon.jit
def add_block_deeply(
    now, step, q, scores, weights, acc, sums, limits, program, KEYS: gl.constexpr,
):
    """W of block number ``now`` from its S, beside O of the block before and S of the next.

    KEYS: of the next one, whose S it gives.
    """
    keys, values, options = program.keys, program.values, program.options
    STAGES: gl.constexpr = keys.full.shape[0]
    DTYPE: gl.constexpr = weights.dtype
    W_LAYOUT: gl.constexpr = weights.type.layout
    next_scores = issue_scores(q, keys, now + 1, KEYS)
    acc = issue_outputs(weights, values, now - 1, acc)
    next_weights = weigh(scores, limits, step, program.numbers, options, False)
    sums = add_sums(sums, next_weights, options)
    pin(values, now - 1)
    acc, others = wait_for(acc, (next_scores, weights, next_weights), 0)
    next_scores, weights, next_weights = others
    next_weights = round_weights(next_weights, options.FORM, DTYPE, W_LAYOUT)
    mbarrier.arrive(keys.empty.index((now + 1) % STAGES), count=1)
    mbarrier.arrive(values.empty.index((now - 1) % STAGES), count=1)
    return next_scores, next_weights, acc, sums


@gluon.jit
def add_blocks_deeply(
    count, block, q, scores, acc, sums, limits, program, W_LAYOUT: gl.constexpr,
):
    """All blocks but O of the last one, from S of the first one, of number ``block``; at least 2.

    With a PIECE at least 3. Gives W of the last one.
    """
    keys, values, options = program.keys, program.values, program.options
    STAGES: gl.constexpr = keys.full.shape[0]
    KEYS: gl.constexpr = keys.buffers.shape[3]
    PIECE: gl.constexpr = options.PIECE
    DTYPE: gl.constexpr = program.q.dtype
    gl.static_assert(STAGES > 1)
    next_scores = issue_scores(q, keys, block + 1, KEYS)
    weights = weigh(scores, limits, 0, program.numbers, options, False)
    sums = add_sums(sums, weights, options)
    weights = round_weights(weights, options.FORM, DTYPE, W_LAYOUT)
    scores = warpgroup_mma_wait(0, deps=[next_scores])
    mbarrier.arrive(keys.empty.index((block + 1) % STAGES), count=1)
    whole = count - 2 if PIECE > 0 else count - 1
    for step in range(1, whole):
        scores, weights, acc, sums = add_block_deeply(
            block + step, step, q, scores, weights, acc, sums, limits, program, KEYS
        )
    last_scores = scores
    if PIECE > 0:
        last_scores, weights, acc, sums = add_block_deeply(
            block + whole, whole, q, scores, weights, acc, sums, limits, program, PIECE
        )
    last = block + count - 1
    acc = issue_outputs(weights, values, last - 1, acc)
    last_weights = weigh(last_scores, limits, count - 1, program.numbers, options, False)
    sums = add_sums(sums, last_weights, options)
    last_weights = round_weights(last_weights, options.FORM, DTYPE, W_LAYOUT)
    acc, others = wait_for(acc, (weights, last_weights), 0)
    mbarrier.arrive(values.empty.index((last - 1) % STAGES), count=1)
    return others[1], acc, sums


@gluon.jit
def add_blocks(
    first, last, block, q, weights, acc, sums, limits, program,
    MASKED: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Steps first <= step < last, step 0 being that of number ``block``; O lags behind."""
    for step in range(first, last):
        weights, acc, sums = add_block(
            block + step, step, q, weights, acc, sums, limits, program,
            MASKED, program.options.SCHEDULE, program.keys.buffers.shape[3], CONSUMER,
        )
    return weights, acc, sums


@gluon.jit
def add_seen_blocks(
    whole_blocks, own_blocks, block, q, scores, acc, sums, limits, program,
    W_LAYOUT: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Blocks that all rows see, from S of the first one, of number ``block``.

    Gives W of the last of them, whose O is to come. By schedule "deep" a PIECE is among them.
    """
    options = program.options
    if options.SCHEDULE == "deep":
        return add_blocks_deeply(
            own_blocks, block, q, scores, acc, sums, limits, program, W_LAYOUT
        )
    else:
        weights = weigh(scores, limits, 0, program.numbers, options, options.CAUSAL)
        sums = add_sums(sums, weights, options)
        weights = round_weights(weights, options.FORM, program.q.dtype, W_LAYOUT)
        return add_blocks(
            1, whole_blocks, block, q, weights, acc, sums, limits, program, False, CONSUMER
        )


@gluon.jit
def give_back(first, last, program, CONSUMER: gl.constexpr):
    """Let blocks first <= block < last pass, which only other warpgroups see."""
    keys, values, turns = program.keys, program.values, program.turns
    STAGES: gl.constexpr = keys.full.shape[0]
    SCHEDULE: gl.constexpr = program.options.SCHEDULE
    for unseen in range(first, last):
        stage = unseen % STAGES
        take_turn(turns, unseen, SCHEDULE, CONSUMER)
        pass_turn(turns, SCHEDULE, CONSUMER)
        mbarrier.wait(keys.full.index(stage), unseen // STAGES & 1)
        mbarrier.arrive(keys.empty.index(stage), count=1)
        mbarrier.wait(values.full.index(stage), unseen // STAGES & 1)
        mbarrier.arrive(values.empty.index(stage), count=1)
