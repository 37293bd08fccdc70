"""What a warpgroup does with one column block, and all of a head's; names as in ``kernel.py``.

Those of sides that make scores beside dW; others are in ``single.py``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from flashpoint.ops.gpu.hopper.backward.signs import count_block_words, store_signs
from flashpoint.ops.gpu.hopper.backward.weights import (
    differentiate,
    fetch_offsets,
    lift,
    power_of,
    weigh,
)
from flashpoint.ops.gpu.hopper.pieces import (
    cut_pieces,
    start_products,
    start_transposed,
    view_pieces,
    wait_for,
)


@gluon.jit
def take_columns(
    c, d, d_full, parity, first, rows, da, db, words, offsets, limits, program,
    SIDE: gl.constexpr, MASKED: gl.constexpr, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """Columns from ``first`` on: S, dW | W, dS | da, db. The other warpgroup fills the gaps."""
    a, b = rows
    DTYPE: gl.constexpr = c[0].dtype
    COLUMNS: gl.constexpr = c[0].shape[0]
    offset = fetch_offsets(offsets, first, program, COLUMNS, SIDE, S_LAYOUT)
    scores = start_transposed(a, c, S_LAYOUT)
    mbarrier.wait(d_full, parity)
    dweights = start_transposed(b, d, S_LAYOUT)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights, signs = weigh(scores, limits, first, program, SIDE, MASKED, DTYPE)
    if program.options.SIGNED:
        at = words + first // COLUMNS * count_block_words(program.sizes.num_rows)
        signs = store_signs(signs, at)
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    if program.offsets is not None:
        dweights += offset
    dscores = differentiate(dweights, signs, limits, first, program, SIDE, MASKED, DTYPE)
    dscores = gl.convert_layout(dscores, W_LAYOUT, assert_trivial=True)
    da = start_products(dscores, c, da)
    if SIDE == "keys":
        weights = gl.convert_layout(weights, W_LAYOUT, assert_trivial=True)
        db = start_products(weights, d, db)
    return wait_for(da, db, 0)


@gluon.jit
def take_block(
    block, number, rows, da, db, words, offsets, limits, program,
    SIDE: gl.constexpr, MASKED: gl.constexpr, W_LAYOUT: gl.constexpr,
    PIECE: gl.constexpr, LAST_PIECE: gl.constexpr,
):
    """The first PIECE + LAST_PIECE columns of a block, so many at a time."""
    columns = program.columns
    STAGES: gl.constexpr = columns.empty.shape[0]
    BLOCK: gl.constexpr = columns.c_buffers.shape[3]
    PIECES: gl.constexpr = program.options.PIECES
    stage = number % STAGES
    parity = number // STAGES & 1
    first = block * BLOCK
    c = view_pieces(columns.c_buffers, stage, PIECES)
    d = view_pieces(columns.d_buffers, stage, PIECES)
    mbarrier.wait(columns.c_full.index(stage), parity)
    da, db = take_columns(
        cut_pieces(c, 0, PIECE), cut_pieces(d, 0, PIECE), columns.d_full.index(stage), parity,
        first, rows, da, db, words, offsets, limits, program, SIDE, MASKED,
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16]), W_LAYOUT,
    )
    if LAST_PIECE > 0:
        da, db = take_columns(
            cut_pieces(c, PIECE, LAST_PIECE), cut_pieces(d, PIECE, LAST_PIECE),
            columns.d_full.index(stage), parity, first + PIECE, rows, da, db, words, offsets,
            limits, program, SIDE, MASKED,
            gl.NVMMADistributedLayout([3, 0], [4, 1], [16, LAST_PIECE, 16]), W_LAYOUT,
        )
    mbarrier.arrive(columns.empty.index(stage), count=1)
    return da, db


@gluon.jit
def skip_blocks(first, last, program):
    """Give back the blocks of these numbers: only other warpgroups meet them."""
    columns = program.columns
    STAGES: gl.constexpr = columns.empty.shape[0]
    for number in range(first, last):
        stage = number % STAGES
        mbarrier.wait(columns.c_full.index(stage), number // STAGES & 1)
        mbarrier.wait(columns.d_full.index(stage), number // STAGES & 1)
        mbarrier.arrive(columns.empty.index(stage), count=1)


@gluon.jit
def take_blocks_lagging(
    start, end, tile_blocks, number, rows, da, db, offsets, limits, program,
    SIDE: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """Steps start <= step < end of a power of relu, no mask: S, dW, da before | W | db | dS.

    A block's dS meets its columns beside the next block's scores. Before the first block dS is
    zeros, which meet the first block's own columns. dW begins with the offsets of queries.
    """
    columns = program.columns
    tile_first, tile_last, tile_masked = tile_blocks
    a, b = rows
    STAGES: gl.constexpr = columns.empty.shape[0]
    BLOCK: gl.constexpr = columns.c_buffers.shape[3]
    PIECES: gl.constexpr = program.options.PIECES
    HAS_OFFSETS: gl.constexpr = program.offsets is not None
    DTYPE: gl.constexpr = columns.c_buffers.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    ROWS: gl.constexpr = da[0].shape[0]
    gl.static_assert(STAGES > 1)
    dscores = gl.full([ROWS, BLOCK], 0.0, DTYPE, W_LAYOUT)
    for step in range(start, end):
        first = (tile_first + step if SIDE == "keys" else tile_last - 1 - step) * BLOCK
        now = number + step
        before = gl.where(step > start, now - 1, now)
        stage = now % STAGES
        parity = now // STAGES & 1
        c = view_pieces(columns.c_buffers, stage, PIECES)
        d = view_pieces(columns.d_buffers, stage, PIECES)
        offset = fetch_offsets(offsets, first, program, BLOCK, SIDE, S_LAYOUT, True)
        mbarrier.wait(columns.c_full.index(stage), parity)
        scores = start_transposed(a, c, S_LAYOUT)
        mbarrier.wait(columns.d_full.index(stage), parity)
        dweights = start_transposed(b, d, S_LAYOUT, offset if HAS_OFFSETS else None)
        da = start_products(dscores, view_pieces(columns.c_buffers, before % STAGES, PIECES), da)
        scores = warpgroup_mma_wait(1 + len(da), deps=[scores])
        weights, signs = weigh(scores, limits, first, program, SIDE, False, DTYPE)
        slopes = power_of(signs, program.options.DEGREE - 1)
        if SIDE == "keys":
            weights = gl.convert_layout(weights, W_LAYOUT, assert_trivial=True)
            db = start_products(weights, d, db)
            dweights = warpgroup_mma_wait(len(da) + len(db), deps=[dweights])
        else:  # this wait returns at once; without its branch, ptxas moves h' behind the next one
            mbarrier.wait(columns.c_full.index(stage), parity)
            dweights = warpgroup_mma_wait(len(da), deps=[dweights])
        new = lift(dweights * slopes, first, program.numbers.lift_ds, program, SIDE, False)
        new = gl.convert_layout(new.to(DTYPE), W_LAYOUT, assert_trivial=True)
        if SIDE == "keys":
            da, others = wait_for(da, db + [weights, dscores, new], 0)
            db = others[:len(db)]
        else:
            da, others = wait_for(da, [dscores, new], 0)
        dscores = others[len(others) - 1]
        if step > start:
            mbarrier.arrive(columns.empty.index(before % STAGES), count=1)
    if start < end:
        stage = (number + end - 1) % STAGES
        da = start_products(dscores, view_pieces(columns.c_buffers, stage, PIECES), da)
        da, rest = wait_for(da, (), 0)
        mbarrier.arrive(columns.empty.index(stage), count=1)
    return da, db


@gluon.jit
def take_head(
    tile_blocks, own_blocks, number, rows, da, db, words, offsets, limits, has_rows, program,
    SIDE: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """All column blocks of one head; number: that of the tile's first block.

    If not CAUSAL, the last block has PIECE + LAST_PIECE columns, or as many as others where these
    are 0; and a warpgroup without rows leaves other blocks alone.
    """
    first, last, masked = own_blocks
    tile_first, tile_last, tile_masked = tile_blocks
    BLOCK: gl.constexpr = program.columns.c_buffers.shape[3]
    PIECE: gl.constexpr = program.options.PIECE
    LAST_PIECE: gl.constexpr = program.options.LAST_PIECE
    start = 0
    end = tile_last - tile_first
    if program.options.CAUSAL:
        skipped = first - tile_first if SIDE == "keys" else tile_last - last
        skip_blocks(number, number + skipped, program)
        for step in range(masked):
            block = first + step if SIDE == "keys" else last - 1 - step
            da, db = take_block(
                block, number + skipped + step, rows, da, db, words, offsets, limits, program,
                SIDE, True, W_LAYOUT, BLOCK, 0,
            )
        start = skipped + masked
    else:
        if PIECE > 0 and SIDE == "queries":
            da, db = take_block(
                tile_last - 1, number, rows, da, db, words, offsets, limits, program,
                SIDE, False, W_LAYOUT, PIECE, LAST_PIECE,
            )
            start = 1
        if PIECE > 0 and SIDE == "keys":
            end -= 1
        taken = gl.where(has_rows, start, end)
        skip_blocks(number + start, number + taken, program)
        start = taken
    if program.options.LAGS:
        da, db = take_blocks_lagging(
            start, end, tile_blocks, number, rows, da, db, offsets, limits, program,
            SIDE, W_LAYOUT,
        )
    else:
        for step in range(start, end):
            block = tile_first + step if SIDE == "keys" else tile_last - 1 - step
            da, db = take_block(
                block, number + step, rows, da, db, words, offsets, limits, program,
                SIDE, False, W_LAYOUT, BLOCK, 0,
            )
    if PIECE > 0 and SIDE == "keys":
        da, db = take_block(
            tile_last - 1, number + end, rows, da, db, words, offsets, limits, program,
            SIDE, False, W_LAYOUT, PIECE, LAST_PIECE,
        )
    return da, db
