"""What a warpgroup does with its rows of a tile, up to their gradients; names as in ``kernel.py``.

The products are in ``blocks.py`` and ``single.py``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from flashpoint.ops.gpu.hopper.backward.blocks import take_head
from flashpoint.ops.gpu.hopper.backward.producer import find_tile
from flashpoint.ops.gpu.hopper.backward.signs import count_head_words, find_words
from flashpoint.ops.gpu.hopper.backward.single import take_head_by_scores, take_head_by_signs
from flashpoint.ops.gpu.hopper.backward.weights import find_blocks
from flashpoint.ops.gpu.hopper.pieces import (
    as_matrices,
    find_pieces,
    make_zeros,
    read_pieces,
    store_pieces,
)
from flashpoint.ops.gpu.hopper.qk_norm import add_pairs, normalize_gradient
from flashpoint.ops.gpu.hopper.tiles import count_turns
from flashpoint.ops.gpu.normalizer import over_power
from flashpoint.ops.gpu.portable import backward_rows

PLACES = gl.constexpr(backward_rows.PLACES)
# of threads that clear and add up what ``add_pairs`` has gathered
SHARE_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))


@gluon.jit
def enter_norm(
    batch, head, first_row, sizes, norm, ROWS: gl.constexpr, LAYOUT: gl.constexpr,
):
    """What ``leave_norm`` must know of rows x, if there is a norm: their means and r."""
    if norm.KIND == "none":
        return 0.0, 0.0
    else:
        num_rows, H = sizes.num_rows, sizes.H
        row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        at = norm.statistics + (batch.to(gl.int64) * num_rows * H + head) * 2 + row * (H * 2)
        mean = gl.load(at, mask=row < num_rows, other=0.0)
        return mean, gl.load(at + 1, mask=row < num_rows, other=0.0)


@gluon.jit
def leave_norm(da, tail, slot, known, norm, D: gl.constexpr, CONSUMER: gl.constexpr):
    """Pieces of da times the tail; of one piece, that of x-hat, it becomes that of x.

    Its share of dgain is added up.
    """
    if norm.KIND == "none":
        return [piece * tail for piece in da]
    else:
        mean, r = known
        x = norm.buffers.index(slot).reshape(da[0].shape).load(da[0].type.layout)
        dx, own = normalize_gradient(da[0], tail, x, mean, r, norm.gain, norm.KIND, D)
        if norm.dgain is not None:
            own = add_pairs(own)
            share = norm.shares.index(CONSUMER)
            share.store(share.load(own.type.layout) + own)
        return (dx,)


@gluon.jit
def clear_share(norm, CONSUMER: gl.constexpr):
    """Zeros for what this warpgroup's tiles add to dgain, if there is a gain."""
    if norm.dgain is not None:
        share = norm.shares.index(CONSUMER)
        share.store(gl.full(share.shape, 0.0, gl.float32, SHARE_LAYOUT))


@gluon.jit
def store_share(row, tail, norm, D: gl.constexpr, CONSUMER: gl.constexpr):
    """The sum of all that was added, times the tail, to a row of dgain."""
    if norm.dgain is not None:
        share = norm.shares.index(CONSUMER)
        d = gl.arange(0, share.shape[1], gl.SliceLayout(0, SHARE_LAYOUT))
        at = norm.dgain + row * D + d
        gl.store(at, gl.sum(share.load(SHARE_LAYOUT), 0) * tail, mask=d < D)


@gluon.jit
def count_places(queries):
    """Numbers of a head's queries, with those behind the last: whole blocks."""
    return (queries + PLACES - 1) // PLACES * PLACES


@gluon.jit
def find_offsets(
    batch, head, first_row, program,
    SIDE: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr,
):
    """Those of the queries in rows, or a pointer to those of the first head in columns; or 0."""
    sizes = program.sizes
    if program.offsets is None:
        return 0.0
    elif SIDE == "keys":
        heads = (batch.to(gl.int64) * sizes.H + head) * sizes.group
        return program.offsets + heads * count_places(sizes.num_columns)
    else:
        heads = batch.to(gl.int64) * sizes.H + head
        row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        at = program.offsets + heads * count_places(sizes.num_rows) + row
        return gl.load(at, mask=row < sizes.num_rows, other=0.0)


@gluon.jit
def enter_tile(tile, slot, program, CONSUMER: gl.constexpr):
    """Wait for its rows; with two slots, give back that of the tile before."""
    SLOTS: gl.constexpr = program.options.SLOTS
    NUM_CONSUMERS: gl.constexpr = program.rows.full.shape[0] // SLOTS
    mbarrier.wait(program.rows.full.index(slot), tile // SLOTS & 1)
    if SLOTS > 1:
        tma.store_wait(0)  # the last tile's stores have read their slots
        if tile > 0:
            other = (1 - tile % SLOTS) * NUM_CONSUMERS + CONSUMER
            mbarrier.arrive(program.rows.empty.index(other), count=1)


@gluon.jit
def leave_tile(slot, program):
    """With one slot, give it back as soon as its gradients are read."""
    if program.options.SLOTS == 1:
        tma.store_wait(0)
        mbarrier.arrive(program.rows.empty.index(slot), count=1)


@gluon.jit
def take_any_head(
    tile_blocks, own_blocks, number, first_row, rows, da, db, words, offsets, limits,
    side, program, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """All column blocks of one head, by what the side has; gives da and db."""
    num_rows, num_columns = program.sizes.num_rows, program.sizes.num_columns
    ROWS: gl.constexpr = side.a.block_shape[2]
    SIDE: gl.constexpr = side.SIDE
    if side.FROM == "signs":
        end = gl.minimum(first_row + ROWS + num_columns - num_rows, num_columns)
        da = take_head_by_signs(
            tile_blocks, own_blocks, number, rows[0], da, words, end, program,
            SIDE, S_LAYOUT, W_LAYOUT,
        )
    elif side.FROM == "scores":
        da = take_head_by_scores(
            tile_blocks, own_blocks, number, rows[0], da, words, limits, program,
            S_LAYOUT, W_LAYOUT,
        )
    else:
        da, db = take_head(
            tile_blocks, own_blocks, number, rows, da, db, words, offsets, limits,
            first_row < num_rows, program, SIDE, W_LAYOUT,
        )
    return da, db


@gluon.jit
def take_tile(turn, tile, number, side, program, CONSUMER: gl.constexpr):
    """This warpgroup's rows of one tile; gives the next block's number."""
    sizes, numbers, options = program.sizes, program.numbers, program.options
    num_rows, num_columns = sizes.num_rows, sizes.num_columns
    SIDE: gl.constexpr = side.SIDE
    FROM: gl.constexpr = side.FROM
    CAUSAL: gl.constexpr = options.CAUSAL
    PIECES: gl.constexpr = options.PIECES
    SLOTS: gl.constexpr = options.SLOTS
    BLOCK: gl.constexpr = side.c.block_shape[2]
    COLUMNS: gl.constexpr = side.c.block_shape[3]
    ROWS: gl.constexpr = side.a.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = program.rows.full.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, D_LAYOUT, 2)
    place, batch, head, row_tile = find_tile(turn, sizes, CAUSAL, SIDE, options.LAUNCH)
    tile_row = row_tile * BLOCK_ROWS
    last_row = tile_row + BLOCK_ROWS - 1
    tile_blocks = find_blocks(tile_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
    first_row = tile_row + CONSUMER * ROWS
    last_row = first_row + ROWS - 1
    own_blocks = find_blocks(first_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
    # limits: [ROWS], the first column that a row meets (keys), or the end of them (queries)
    limits = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    limits += num_columns - num_rows
    members = sizes.group
    if SIDE == "queries":
        limits = gl.minimum(limits + 1, num_columns)
        members = 1

    slot = tile % SLOTS * NUM_CONSUMERS + CONSUMER
    enter_tile(tile, slot, program, CONSUMER)
    a_blocks = find_pieces(program.rows.a_buffers, slot, PIECES)
    b_blocks = find_pieces(program.rows.b_buffers, slot, PIECES)
    rows = (as_matrices(a_blocks), as_matrices(b_blocks))
    if options.IN_REGISTERS > 0:
        a = read_pieces(rows[0], options.IN_REGISTERS, gl.DotOperandLayout(0, S_LAYOUT, 2))
        rows = (a, rows[1])
    known = enter_norm(batch, head, first_row, sizes, side.norm, ROWS, D_LAYOUT)
    da = make_zeros(ROWS, PIECES, D_LAYOUT)
    db = make_zeros(ROWS, PIECES, D_LAYOUT)
    offsets = find_offsets(batch, head, first_row, program, SIDE, ROWS, S_LAYOUT)
    words = program.words
    if options.SIGNED:
        words = find_words(words, place, first_row, sizes, SIDE)
    for _ in range(members):
        da, db = take_any_head(
            tile_blocks, own_blocks, number, first_row, rows, da, db, words, offsets, limits,
            side, program, S_LAYOUT, W_LAYOUT,
        )
        if options.SIGNED and SIDE == "keys":
            words += count_head_words(num_columns, num_rows)
        if program.offsets is not None and SIDE == "keys":
            offsets += count_places(num_columns)
        number += tile_blocks[1] - tile_blocks[0]

    tail = numbers.tail_w if FROM == "scores" else numbers.tail_ds
    if SIDE == "keys" and FROM == "both":
        db = [piece * numbers.tail_w for piece in db]
        store_pieces(db, b_blocks, side.db, batch, head, first_row)
    elif SIDE == "queries" and options.POWER != "none":
        seen = gl.maximum(limits, 1).to(gl.float32)
        seen = gl.convert_layout(seen, gl.SliceLayout(1, D_LAYOUT), assert_trivial=True)
        da = [over_power(piece, seen[:, None], numbers.alpha, options.POWER) for piece in da]
    da = leave_norm(da, tail, slot, known, side.norm, options.D, CONSUMER)
    store_pieces(da, a_blocks, side.da, batch, head, first_row)
    leave_tile(slot, program)
    return number


@gluon.jit
def consume(program, CONSUMER: gl.constexpr):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile."""
    keys, queries, sizes, options = program.keys, program.queries, program.sizes, program.options
    LAUNCH: gl.constexpr = options.LAUNCH
    clear_share(keys.norm, CONSUMER)
    clear_share(queries.norm, CONSUMER)
    number = 0
    for turn in range(count_turns(sizes.num_heads * sizes.row_tiles, options.CAUSAL)):
        tile = turn * 2 if LAUNCH == "both" else turn
        if LAUNCH != "queries":
            number = take_tile(turn, tile, number, keys, program, CONSUMER)
        if LAUNCH != "keys":
            number = take_tile(
                turn, tile + (LAUNCH == "both"), number, queries, program, CONSUMER
            )
    tma.store_wait(0)
    row = gl.program_id(0) * (program.rows.full.shape[0] // options.SLOTS) + CONSUMER
    store_share(row, program.numbers.tail_ds, keys.norm, options.D, CONSUMER)
    store_share(row, program.numbers.tail_ds, queries.norm, options.D, CONSUMER)
