"""What a warpgroup does with its rows of a tile; names as in ``kernel.py``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from flashpoint.ops.gpu.activations import power_of
from flashpoint.ops.gpu.hopper.forward.blocks import (
    add_block,
    add_blocks,
    add_seen_blocks,
    give_back,
    issue_outputs,
    issue_scores,
)
from flashpoint.ops.gpu.hopper.forward.producer import count_blocks
from flashpoint.ops.gpu.hopper.pieces import (
    find_pieces,
    make_zeros,
    read_pieces,
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
    add_async,
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
def leave_registers(acc, program, batch, head, first_row):
    """totals += O, [ROWS, columns of a piece] each, of rows and columns that exist.

    If not ADDS, totals = O.
    """
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
        total = acc[piece]
        if options.ADDS:
            total += gl.load(places, mask=mask)
        gl.store(places, total, mask=mask)


@gluon.jit
def leave(acc, o_blocks, q_empty, program, batch, head, first_row):
    """Start the store of O or, if ADDS, its addition, both by the copy engine.

    If by the slot of Q, give it back once it is read. Where o is None, registers go to totals.
    """
    if program.o is None:
        leave_registers(acc, program, batch, head, first_row)
    else:
        if not program.options.O_BY_Q:
            tma.store_wait(0)  # the last tile's store has read its blocks
        if program.options.ADDS:
            gl.static_assert(len(acc) == 1)  # shared memory has no room for more in fp32
            o_blocks[0].reshape(acc[0].shape).store(acc[0])
            fence_async_shared()
            add_async(program.o, [batch, head, first_row, 0], o_blocks[0])
        else:
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
        batch_head, row_tile = locate_tile(turn, B * H, sizes.section, row_tiles, CAUSAL, True)
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
