"""What a warpgroup does with one column block, and all of a head's; names as in ``kernel.py``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashpoint.ops.gpu.hopper.backward.signs import (
    count_block_words,
    gate_by_signs,
    load_signs,
    spread_signs,
    store_signs,
)
from flashpoint.ops.gpu.hopper.backward.weights import differentiate, fetch_offsets, weigh
from flashpoint.ops.gpu.hopper.tiles import pass_turn, take_turn


@gluon.jit
def start_transposed(left, right, LAYOUT: gl.constexpr):
    """Start left right^T of [ROWS, D] and [BLOCK, D] in shared memory."""
    zeros = gl.full([left.shape[0], right.shape[0]], 0.0, gl.float32, LAYOUT)
    return warpgroup_mma(left, right.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def take_columns(
    c, d, d_full, parity, first, rows, da, db, words, offsets, limits, program,
    SIDE: gl.constexpr, MASKED: gl.constexpr, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
    PASSES: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Columns from ``first`` on: S, dW | W, dS | da, db. The other warpgroup fills the gaps.

    PASSES: by schedule "relay" the next one starts its products when S and dW are there.
    """
    a, b = rows
    DTYPE: gl.constexpr = c.dtype
    offset = fetch_offsets(offsets, first, program, c.shape[0], SIDE, S_LAYOUT)
    scores = start_transposed(a, c, S_LAYOUT)
    mbarrier.wait(d_full, parity)
    dweights = start_transposed(b, d, S_LAYOUT)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights, signs = weigh(scores, limits, first, program, SIDE, MASKED, DTYPE)
    if program.options.SIGNED:
        at = words + first // c.shape[0] * count_block_words(program.sizes.num_rows)
        signs = store_signs(signs, at)
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    if PASSES:
        pass_turn(program.turns, program.options.SCHEDULE, CONSUMER)
    if program.offsets is not None:
        dweights += offset
    dscores = differentiate(dweights, signs, limits, first, program, SIDE, MASKED, DTYPE)
    dscores = gl.convert_layout(dscores, W_LAYOUT, assert_trivial=True)
    da = warpgroup_mma(dscores, c, da, is_async=True)
    if SIDE == "keys":
        weights = gl.convert_layout(weights, W_LAYOUT, assert_trivial=True)
        db = warpgroup_mma(weights, d, db, is_async=True)
    da, db = warpgroup_mma_wait(0, deps=[da, db])
    return da, db


@gluon.jit
def take_block(
    block, number, rows, da, db, words, offsets, limits, program,
    SIDE: gl.constexpr, MASKED: gl.constexpr, W_LAYOUT: gl.constexpr,
    PIECE: gl.constexpr, LAST_PIECE: gl.constexpr, CONSUMER: gl.constexpr,
):
    """The first PIECE + LAST_PIECE columns of a block, so many at a time."""
    columns = program.columns
    c_buffers, d_buffers = columns.c_buffers, columns.d_buffers
    STAGES: gl.constexpr = c_buffers.shape[0]
    BLOCK: gl.constexpr = c_buffers.shape[3]
    stage = number % STAGES
    parity = number // STAGES & 1
    first = block * BLOCK
    c = c_buffers.index(stage).reshape([BLOCK, c_buffers.shape[4]])
    d = d_buffers.index(stage).reshape([BLOCK, d_buffers.shape[4]])
    take_turn(program.turns, number, program.options.SCHEDULE, CONSUMER)
    mbarrier.wait(columns.c_full.index(stage), parity)
    da, db = take_columns(
        c.slice(0, PIECE), d.slice(0, PIECE), columns.d_full.index(stage), parity, first,
        rows, da, db, words, offsets, limits, program, SIDE, MASKED,
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16]), W_LAYOUT,
        True, CONSUMER,
    )
    if LAST_PIECE > 0:
        da, db = take_columns(
            c.slice(PIECE, LAST_PIECE), d.slice(PIECE, LAST_PIECE), columns.d_full.index(stage),
            parity, first + PIECE, rows, da, db, words, offsets, limits, program, SIDE, MASKED,
            gl.NVMMADistributedLayout([3, 0], [4, 1], [16, LAST_PIECE, 16]), W_LAYOUT,
            False, CONSUMER,
        )
    mbarrier.arrive(columns.empty.index(stage), count=1)
    return da, db


@gluon.jit
def skip_blocks(first, last, program, CONSUMER: gl.constexpr):
    """Give back the blocks of these numbers: only other warpgroups meet them."""
    columns = program.columns
    STAGES: gl.constexpr = columns.c_buffers.shape[0]
    SCHEDULE: gl.constexpr = program.options.SCHEDULE
    for number in range(first, last):
        stage = number % STAGES
        take_turn(program.turns, number, SCHEDULE, CONSUMER)
        pass_turn(program.turns, SCHEDULE, CONSUMER)
        mbarrier.wait(columns.c_full.index(stage), number // STAGES & 1)
        mbarrier.wait(columns.d_full.index(stage), number // STAGES & 1)
        mbarrier.arrive(columns.empty.index(stage), count=1)


@gluon.jit
def take_head(
    tile_blocks, own_blocks, number, rows, da, db, words, offsets, limits, has_rows, program,
    SIDE: gl.constexpr, W_LAYOUT: gl.constexpr, CONSUMER: gl.constexpr,
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
        skip_blocks(number, number + skipped, program, CONSUMER)
        for step in range(masked):
            block = first + step if SIDE == "keys" else last - 1 - step
            da, db = take_block(
                block, number + skipped + step, rows, da, db, words, offsets, limits, program,
                SIDE, True, W_LAYOUT, BLOCK, 0, CONSUMER,
            )
        start = skipped + masked
    else:
        if PIECE > 0 and SIDE == "queries":
            da, db = take_block(
                tile_last - 1, number, rows, da, db, words, offsets, limits, program,
                SIDE, False, W_LAYOUT, PIECE, LAST_PIECE, CONSUMER,
            )
            start = 1
        if PIECE > 0 and SIDE == "keys":
            end -= 1
        taken = gl.where(has_rows, start, end)
        skip_blocks(number + start, number + taken, program, CONSUMER)
        start = taken
    for step in range(start, end):
        block = tile_first + step if SIDE == "keys" else tile_last - 1 - step
        da, db = take_block(
            block, number + step, rows, da, db, words, offsets, limits, program,
            SIDE, False, W_LAYOUT, BLOCK, 0, CONSUMER,
        )
    if PIECE > 0 and SIDE == "keys":
        da, db = take_block(
            tile_last - 1, number + end, rows, da, db, words, offsets, limits, program,
            SIDE, False, W_LAYOUT, PIECE, LAST_PIECE, CONSUMER,
        )
    return da, db


@gluon.jit
def take_block_by_signs(
    block, number, a, da, signs, words, program, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """One block of keys by its signs: dW | dS | da; gives da and the signs of the next block."""
    columns = program.columns
    c_buffers, d_buffers = columns.c_buffers, columns.d_buffers
    STAGES: gl.constexpr = c_buffers.shape[0]
    BLOCK: gl.constexpr = c_buffers.shape[3]
    stage = number % STAGES
    parity = number // STAGES & 1
    c = c_buffers.index(stage).reshape([BLOCK, c_buffers.shape[4]])
    d = d_buffers.index(stage).reshape([BLOCK, d_buffers.shape[4]])
    mbarrier.wait(columns.c_full.index(stage), parity)
    dweights = start_transposed(a, c, S_LAYOUT)
    next_signs = load_signs(words, gl.maximum(block - 1, 0), 0, BLOCK, False)
    mbarrier.wait(columns.d_full.index(stage), parity)
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    if program.options.LIFTS:
        dweights *= program.numbers.lift_ds
    signs = spread_signs(signs, BLOCK, S_LAYOUT)
    dscores = gate_by_signs(dweights, signs, "queries", c_buffers.dtype)
    dscores = gl.convert_layout(dscores, W_LAYOUT, assert_trivial=True)
    da = warpgroup_mma(dscores, d, da, is_async=True)
    da = warpgroup_mma_wait(0, deps=[da])
    mbarrier.arrive(columns.empty.index(stage), count=1)
    return da, next_signs


@gluon.jit
def take_head_by_signs(
    tile_blocks, own_blocks, number, a, da, words, end, program,
    S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr, CONSUMER: gl.constexpr,
):
    """All key blocks of one head, from the last one down; ``end``: that of the keys that a sees.

    Nothing is masked but the signs of the last block, the only one that reaches beyond the end.
    """
    first, last, masked = own_blocks
    tile_first, tile_last, tile_masked = tile_blocks
    CAUSAL: gl.constexpr = program.options.CAUSAL
    BLOCK: gl.constexpr = program.columns.c_buffers.shape[3]
    skipped = 0
    if CAUSAL:
        skipped = tile_last - last
        skip_blocks(number, number + skipped, program, CONSUMER)
    signs = load_signs(words, last - 1, end, BLOCK, CAUSAL)
    for step in range(last):
        da, signs = take_block_by_signs(
            last - 1 - step, number + skipped + step, a, da, signs, words, program,
            S_LAYOUT, W_LAYOUT,
        )
    return da
