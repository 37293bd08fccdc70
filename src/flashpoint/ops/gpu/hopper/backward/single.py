"""Sides whose rows meet c alone: T = a c^T, then da += f(T) d; names as in ``kernel.py``.

FROM scores: T is S, f(T) is W, and the signs of S are stored. FROM signs: T is dW, f(T) is dS, dW
where the score is positive.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from flashpoint.ops.gpu.hopper.backward.blocks import skip_blocks
from flashpoint.ops.gpu.hopper.backward.signs import (
    count_block_words,
    gate_by_signs,
    load_own_signs,
    load_signs,
    spread_own_signs,
    spread_signs,
    store_signs,
)
from flashpoint.ops.gpu.hopper.backward.weights import lift, weigh
from flashpoint.ops.gpu.hopper.pieces import (
    start_products,
    start_transposed,
    view_pieces,
    wait_for,
)


@gluon.jit
def take_block_by_scores(
    block, number, a, da, words, limits, program,
    MASKED: gl.constexpr, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """One block of queries: S | W | da. Signs are packed while the last product runs."""
    columns = program.columns
    STAGES: gl.constexpr = columns.empty.shape[0]
    BLOCK: gl.constexpr = columns.c_buffers.shape[3]
    DTYPE: gl.constexpr = columns.c_buffers.dtype
    PIECES: gl.constexpr = program.options.PIECES
    stage = number % STAGES
    parity = number // STAGES & 1
    mbarrier.wait(columns.c_full.index(stage), parity)
    scores = start_transposed(a, view_pieces(columns.c_buffers, stage, PIECES), S_LAYOUT)
    mbarrier.wait(columns.d_full.index(stage), parity)
    scores = warpgroup_mma_wait(0, deps=[scores])
    weights, signs = weigh(scores, limits, block * BLOCK, program, "keys", MASKED, DTYPE)
    weights = gl.convert_layout(weights, W_LAYOUT, assert_trivial=True)
    da = start_products(weights, view_pieces(columns.d_buffers, stage, PIECES), da)
    store_signs(signs, words + block * count_block_words(program.sizes.num_rows))
    da, _ = wait_for(da, (), 0)
    mbarrier.arrive(columns.empty.index(stage), count=1)
    return da


@gluon.jit
def take_head_by_scores(
    tile_blocks, own_blocks, number, a, da, words, limits, program,
    S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """All query blocks of one head; number: that of the tile's first block."""
    first, last, masked = own_blocks
    tile_first, tile_last, tile_masked = tile_blocks
    start = 0
    if program.options.CAUSAL:
        skipped = first - tile_first
        skip_blocks(number, number + skipped, program)
        for step in range(masked):
            da = take_block_by_scores(
                first + step, number + skipped + step, a, da, words, limits, program,
                True, S_LAYOUT, W_LAYOUT,
            )
        start = skipped + masked
    for step in range(start, tile_last - tile_first):
        da = take_block_by_scores(
            tile_first + step, number + step, a, da, words, limits, program,
            False, S_LAYOUT, W_LAYOUT,
        )
    return da


@gluon.jit
def take_block_by_signs(
    block, last, number, a, da, signs, words, program,
    SIDE: gl.constexpr, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """One block by its signs: dW | dS | da; gives da and the signs of the next block.

    Of queries that is the one behind it, up to ``last``, of keys the one before.
    """
    columns = program.columns
    STAGES: gl.constexpr = columns.empty.shape[0]
    BLOCK: gl.constexpr = columns.c_buffers.shape[3]
    PIECES: gl.constexpr = program.options.PIECES
    stage = number % STAGES
    parity = number // STAGES & 1
    c = view_pieces(columns.c_buffers, stage, PIECES)
    d = view_pieces(columns.d_buffers, stage, PIECES)
    mbarrier.wait(columns.c_full.index(stage), parity)
    dweights = start_transposed(a, c, S_LAYOUT)
    if SIDE == "keys":
        next_signs = load_own_signs(words, gl.minimum(block + 1, last - 1), program.sizes)
    else:
        next_signs = load_signs(words, gl.maximum(block - 1, 0), 0, BLOCK, False)
    mbarrier.wait(columns.d_full.index(stage), parity)
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    # what is hidden has no sign, whatever it is lifted by
    dweights = lift(dweights, block * BLOCK, program.numbers.lift_ds, program, SIDE, False)
    if SIDE == "keys":
        signs = spread_own_signs(signs, S_LAYOUT)
    else:
        signs = spread_signs(signs, BLOCK, S_LAYOUT)
    dscores = gate_by_signs(dweights, signs, SIDE, columns.c_buffers.dtype)
    dscores = gl.convert_layout(dscores, W_LAYOUT, assert_trivial=True)
    da = start_products(dscores, d, da)
    da, _ = wait_for(da, (), 0)
    mbarrier.arrive(columns.empty.index(stage), count=1)
    return da, next_signs


@gluon.jit
def take_head_by_signs(
    tile_blocks, own_blocks, number, a, da, words, end, program,
    SIDE: gl.constexpr, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """All blocks of one head; of keys from the last one down, ``end``: of those that a sees.

    Nothing is masked but the signs of the last block of keys, the only one that reaches beyond the
    end.
    """
    first, last, masked = own_blocks
    tile_first, tile_last, tile_masked = tile_blocks
    CAUSAL: gl.constexpr = program.options.CAUSAL
    BLOCK: gl.constexpr = program.columns.c_buffers.shape[3]
    skipped = 0
    if CAUSAL:
        skipped = first - tile_first if SIDE == "keys" else tile_last - last
        skip_blocks(number, number + skipped, program)
    if SIDE == "keys":
        signs = load_own_signs(words, first, program.sizes)
        for block in range(first, last):
            da, signs = take_block_by_signs(
                block, last, number + block - tile_first, a, da, signs, words, program,
                SIDE, S_LAYOUT, W_LAYOUT,
            )
    else:
        signs = load_signs(words, last - 1, end, BLOCK, CAUSAL)
        for step in range(last):
            da, signs = take_block_by_signs(
                last - 1 - step, last, number + skipped + step, a, da, signs, words, program,
                SIDE, S_LAYOUT, W_LAYOUT,
            )
    return da
