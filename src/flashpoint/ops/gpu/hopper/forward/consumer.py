"""What a warpgroup does with its rows of a tile, products above all; names as in ``kernel.py``.

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
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from flashpoint.ops.gpu.activations import power_of
from flashpoint.ops.gpu.hopper.forward.producer import count_blocks
from flashpoint.ops.gpu.hopper.forward.weights import add_sums, round_weights, weigh
from flashpoint.ops.gpu.hopper.pieces import (
    cut_pieces,
    find_pieces,
    make_zeros,
    read_pieces,
    start_products,
    start_transposed,
    store_pieces,
    view_pieces,
    wait_for,
)
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
    take_turn,
)
from flashpoint.ops.gpu.normalizer import over_power, over_sum


@gluon.jit
def take_queries(
    q_buffers, q_empty, num_rows, norms, options, LAYOUT: gl.constexpr,
):
    """Pieces of Q, normalized, as products take them: buffers, or registers.

    The slot is given back if registers hold all, unless O leaves by it. Only a Q of one piece has
    a norm. If ROOTS_LAST, it lacks r, and P x comes beside it.
    """
    D: gl.constexpr = options.D
    Q_NORM: gl.constexpr = options.Q_NORM
    queries, centered = q_buffers, 0.0
    if options.Q_IN_REGISTERS > 0:
        queries = read_pieces(q_buffers, options.Q_IN_REGISTERS, LAYOUT)
        if options.Q_IN_REGISTERS == options.PIECES and not options.O_BY_Q:
            fence_async_shared()
            mbarrier.arrive(q_empty, count=1)
        q = queries[0]
        if options.ROOTS_LAST:
            x = q.to(gl.float32)
            centered = center(x, gl.sum(x, 1) / D, Q_NORM, D)
            queries = (times_gain(centered, norms.q_gain, D).to(q.dtype),)
        elif Q_NORM != "none":
            exists = gl.arange(0, q.shape[0], gl.SliceLayout(1, LAYOUT)) < num_rows
            queries = (normalize_rows(q, exists, norms.q_gain, norms.q_eps, Q_NORM, D),)
    elif Q_NORM != "none":
        normalize_buffer(q_buffers[0], num_rows, norms.q_gain, norms.q_eps, Q_NORM, D)
    return queries, centered


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
def add_block(
    now, step, q, weights, acc, sums, limits, program,
    MASKED: gl.constexpr, SCHEDULE: gl.constexpr, KEYS: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Block number ``now``, a tile's step-th: takes W of the one before, gives W of its KEYS.

    SCHEDULE, from few registers to many; the other warpgroups fill the gaps that are left:
        serial   one product after the other
        paired   S of this step and O of the last one are in flight together
        overlap  as paired, and W of this step is computed while O of the last one still runs
        turns    as overlap, and the warpgroups start their products in turn
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
    OVERLAPS: gl.constexpr = SCHEDULE == "overlap" or HAS_TURNS
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
    if not HAS_TURNS:
        next_weights = round_weights(next_weights, FORM, DTYPE, W_LAYOUT)
    else:  # this wait returns at once; without its branch, ptxas moves h behind the next one
        mbarrier.wait(values.full.index((now - 1) % STAGES), (now - 1) // STAGES & 1)
    if OVERLAPS:  # the product reads the registers of weights until here
        acc, others = wait_for(acc, (weights, next_weights), 0)
        weights, next_weights = others
    if HAS_TURNS:  # into those registers
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
    # this wait returns at once; without its branch, ptxas moves h behind the next one
    mbarrier.wait(values.full.index((now - 1) % STAGES), (now - 1) // STAGES & 1)
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


@gluon.jit
def finish_outputs(acc, factor, sums, limits, alpha, options):
    """O times the factor, of each row if ROOTS_LAST, over a power of how many keys it sees.

    BY_SUM: O over the rows' sums, to which that factor is added.
    """
    POWER: gl.constexpr = options.POWER
    if POWER != "none":
        seen = gl.maximum(limits, 1).to(gl.float32)
        layout: gl.constexpr = gl.SliceLayout(1, acc[0].type.layout)
        seen = gl.convert_layout(seen, layout, assert_trivial=True)
        factor = over_power(factor, seen, alpha, POWER)
    if options.BY_SUM:
        factor = over_sum(sums, factor)
    if POWER != "none" or options.ROOTS_LAST or options.BY_SUM:
        factor = factor[:, None]
    return [piece * factor for piece in acc]


@gluon.jit
def finish_sums(sums, moved, place, first_row, program, LAYOUT: gl.constexpr):
    """Rows' sums of what all threads have, [ROWS] along LAYOUT, stored times what they lack.

    place: of the head among all samples'.
    """
    total = gl.convert_layout(gl.sum(sums, 1), LAYOUT, assert_trivial=True)
    if program.options.HAS_SUMS:
        rows = first_row + gl.arange(0, sums.shape[0], LAYOUT)
        at = program.sums + place.to(gl.int64) * program.sizes.Lq + rows
        gl.store(at, total * moved, mask=rows < program.sizes.Lq)
    return total


@gluon.jit
def add_to_totals(acc, program, batch, head, first_row):
    """totals += O, [ROWS, columns of a piece] each, of rows and columns that exist."""
    totals, options, Lq = program.totals, program.options, program.sizes.Lq
    ROWS: gl.constexpr = acc[0].shape[0]
    COLUMNS: gl.constexpr = acc[0].shape[1]
    LAYOUT: gl.constexpr = acc[0].type.layout
    at = batch.to(gl.int64) * totals.batch + head.to(gl.int64) * totals.head
    first = totals.pointer + at + first_row.to(gl.int64) * totals.row
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    exists = (first_row + rows < Lq)[:, None]
    starts = (first + rows * totals.row)[:, None]  # so that columns are constants in an address
    for piece in gl.static_range(len(acc)):
        mask = exists
        if (piece + 1) * COLUMNS > options.DV:
            mask = exists & (piece * COLUMNS + columns < options.DV)[None, :]
        places = starts + (piece * COLUMNS + columns)[None, :]
        gl.store(places, gl.load(places, mask=mask) + acc[piece], mask=mask)


@gluon.jit
def leave(acc, o_blocks, q_empty, program, batch, head, first_row):
    """Add O to totals, or start its store; if by the slot of Q, give it back once it is read."""
    if program.options.ADDS:
        add_to_totals(acc, program, batch, head, first_row)
    else:
        if not program.options.O_BY_Q:
            tma.store_wait(0)  # the last tile's store has read its blocks
        store_pieces(acc, o_blocks, program.o, batch, head, first_row)
        if program.options.O_BY_Q:
            tma.store_wait(0)
            mbarrier.arrive(q_empty, count=1)


@gluon.jit
def consume(program, CONSUMER: gl.constexpr):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile.

    The last block has PIECE keys, or as many as others where that is 0.
    """
    queries, keys, values, turns = program.queries, program.keys, program.values, program.turns
    sizes, norms, numbers, options = program.sizes, program.norms, program.numbers, program.options
    B, H, row_tiles, Lq, Lk = sizes.B, sizes.H, sizes.row_tiles, sizes.Lq, sizes.Lk
    CAUSAL: gl.constexpr = options.CAUSAL
    PIECE: gl.constexpr = options.PIECE
    SCHEDULE: gl.constexpr = options.SCHEDULE
    HAS_TURNS: gl.constexpr = SCHEDULE == "turns" or SCHEDULE == "relay"
    PIECES: gl.constexpr = options.PIECES
    STAGES: gl.constexpr = keys.full.shape[0]
    BLOCK_KEYS: gl.constexpr = program.k.block_shape[2]
    COLUMNS: gl.constexpr = program.k.block_shape[3]
    ROWS: gl.constexpr = program.q.block_shape[2]
    BLOCK_ROWS: gl.constexpr = ROWS * queries.full.shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    Z_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    q_buffers = view_pieces(queries.buffers, CONSUMER, PIECES)
    o_blocks = find_pieces(program.o_buffers, CONSUMER, PIECES)
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
        LEAST: gl.constexpr = (2 if PIECE > 0 else 1) + (SCHEDULE == "deep")
        own_blocks = gl.where(first_row < Lq, own_blocks, LEAST)
        # limits: [ROWS], how many keys each row sees
        rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        limits = gl.minimum(rows + 1 + Lk - Lq, Lk)
        whole_blocks = own_blocks
        if CAUSAL:
            whole_blocks = gl.maximum(first_row + 1 + Lk - Lq, 0) // BLOCK_KEYS
            whole_blocks = gl.minimum(whole_blocks, own_blocks)
        if PIECE > 0:
            whole_blocks -= 1

        mbarrier.wait(queries.full.index(CONSUMER), turn & 1)
        q, centered = take_queries(
            q_buffers, queries.empty.index(CONSUMER), Lq - first_row, norms, options,
            gl.DotOperandLayout(0, S_LAYOUT, 2),
        )
        take_turn(turns, block, SCHEDULE, CONSUMER)
        scores = issue_scores(q, keys, block, BLOCK_KEYS)
        if SCHEDULE != "relay":
            pass_turn(turns, SCHEDULE, CONSUMER)
        factor = numbers.gain / numbers.shrink if options.SHRINKS else numbers.gain
        moved = numbers.moved
        if options.ROOTS_LAST:
            roots = power_of(root_of(centered, norms.q_eps, options.D), options.DEGREE)
            roots = gl.convert_layout(roots, gl.SliceLayout(1, O_LAYOUT), assert_trivial=True)
            factor = factor / roots if options.BY_SUM else factor * roots
            moved = moved * roots
        scores = warpgroup_mma_wait(0, deps=[scores])
        if SCHEDULE == "relay":
            pass_turn(turns, SCHEDULE, CONSUMER)
        mbarrier.arrive(keys.empty.index(block % STAGES), count=1)
        sums = gl.full([ROWS, 8], 0.0, gl.float32, Z_LAYOUT)
        acc = make_zeros(ROWS, PIECES, O_LAYOUT)
        weights, acc, sums = add_seen_blocks(
            whole_blocks, own_blocks, block, q, scores, acc, sums, limits, program,
            W_LAYOUT, CONSUMER,
        )
        if CAUSAL:
            weights, acc, sums = add_blocks(
                gl.maximum(whole_blocks, 1), own_blocks, block, q, weights, acc, sums, limits,
                program, True, CONSUMER,
            )
        last = block + own_blocks - 1
        if PIECE > 0 and SCHEDULE != "deep":
            weights, acc, sums = add_block(
                last, own_blocks - 1, q, weights, acc, sums, limits, program,
                False, SCHEDULE if HAS_TURNS else "overlap", PIECE, CONSUMER,
            )
        if options.Q_IN_REGISTERS < PIECES and not options.O_BY_Q:
            mbarrier.arrive(queries.empty.index(CONSUMER), count=1)
        acc = issue_outputs(weights, values, last, acc)
        acc, _ = wait_for(acc, (), 0)
        mbarrier.arrive(values.empty.index(last % STAGES), count=1)
        give_back(last + 1, block + tile_blocks, program, CONSUMER)
        block += tile_blocks

        total = finish_sums(
            sums, moved, batch_head, first_row, program, gl.SliceLayout(1, O_LAYOUT)
        )
        acc = finish_outputs(acc, factor, total, limits, numbers.alpha, options)
        leave(acc, o_blocks, queries.empty.index(CONSUMER), program, batch, head, first_row)
    tma.store_wait(0)
