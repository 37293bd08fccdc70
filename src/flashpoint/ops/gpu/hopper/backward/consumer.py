"""What a warpgroup does with its rows of a tile, up to their gradients; names as in ``kernel.py``.

The products are in ``blocks.py``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from flashpoint.ops.gpu.hopper.backward.blocks import take_head, take_head_by_signs
from flashpoint.ops.gpu.hopper.backward.producer import SLOTS, find_tile
from flashpoint.ops.gpu.hopper.backward.signs import count_head_words, find_words
from flashpoint.ops.gpu.hopper.backward.weights import find_blocks
from flashpoint.ops.gpu.hopper.qk_norm import add_pairs, normalize_gradient
from flashpoint.ops.gpu.hopper.tiles import count_turns, store_async
from flashpoint.ops.gpu.normalizer import over_power

# of threads that clear and add up what ``add_pairs`` has gathered
SHARE_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))


@gluon.jit
def store_rows(values, buffer, rows, at):
    """Start the store of [ROWS, D] fp32 by its buffer; rows behind the tensor's are clipped."""
    buffer.reshape(values.shape).store(values.to(rows.dtype))
    fence_async_shared()
    store_async(rows, at, buffer)


@gluon.jit
def enter_norm(
    batch, head, first_row, sizes, norm,
    NORM: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr,
):
    """What ``leave_norm`` must know of rows x, if there is a norm: their means and r."""
    x_rows, x_buffers, gain, dgain, shares, statistics = norm
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns = sizes
    if NORM == "none":
        return 0.0, 0.0
    else:
        row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        at = statistics + (batch.to(gl.int64) * num_rows * H + head) * 2 + row * (H * 2)
        mean = gl.load(at, mask=row < num_rows, other=0.0)
        return mean, gl.load(at + 1, mask=row < num_rows, other=0.0)


@gluon.jit
def leave_norm(
    da, tail, slot, known, norm, NORM: gl.constexpr, D: gl.constexpr, CONSUMER: gl.constexpr
):
    """da [ROWS, D] times the tail, of x-hat, becomes that of x; its share of dgain is added up."""
    if NORM == "none":
        da *= tail
    else:
        mean, r = known
        x_rows, x_buffers, gain, dgain, shares, statistics = norm
        x = x_buffers.index(slot).reshape(da.shape).load(da.type.layout)
        da, own = normalize_gradient(da, tail, x, mean, r, gain, NORM, D)
        if dgain is not None:
            own = add_pairs(own)
            share = shares.index(CONSUMER)
            share.store(share.load(own.type.layout) + own)
    return da


@gluon.jit
def clear_share(norm, CONSUMER: gl.constexpr):
    """Zeros for what this warpgroup's tiles add to dgain, if there is a gain."""
    x_rows, x_buffers, gain, dgain, shares, statistics = norm
    if dgain is not None:
        share = shares.index(CONSUMER)
        share.store(gl.full(share.shape, 0.0, gl.float32, SHARE_LAYOUT))


@gluon.jit
def store_share(row, tail, norm, D: gl.constexpr, CONSUMER: gl.constexpr):
    """The sum of all that was added, times the tail, to a row of dgain."""
    x_rows, x_buffers, gain, dgain, shares, statistics = norm
    if dgain is not None:
        share = shares.index(CONSUMER)
        d = gl.arange(0, share.shape[1], gl.SliceLayout(0, SHARE_LAYOUT))
        gl.store(dgain + row * D + d, gl.sum(share.load(SHARE_LAYOUT), 0) * tail, mask=d < D)


@gluon.jit
def take_tile(
    turn, tile, number, descriptors, buffers, barriers, words, sizes, numbers, norm,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, POWER: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    LAUNCH: gl.constexpr, SIGNED: gl.constexpr, NORM: gl.constexpr, D: gl.constexpr,
    PIECE: gl.constexpr, LAST_PIECE: gl.constexpr, CONSUMER: gl.constexpr,
):
    """This warpgroup's rows of one tile; gives the next block's number."""
    a_rows, b_rows, c_rows, d_rows, da_rows, db_rows = descriptors
    a_buffers, b_buffers, c_buffers, d_buffers = buffers
    rows_full, rows_empty, c_full, d_full, empty = barriers
    scale, bias_number, alpha, lift_w, lift_ds, tail_w, tail_ds = numbers
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns = sizes
    BLOCK: gl.constexpr = c_rows.block_shape[2]
    BLOCK_D: gl.constexpr = c_rows.block_shape[3]
    ROWS: gl.constexpr = a_rows.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = a_buffers.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, D_LAYOUT, 2)
    place, batch, head, row_tile = find_tile(turn, sizes, CAUSAL, SIDE, LAUNCH)
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

    slot = tile % SLOTS * NUM_CONSUMERS + CONSUMER
    mbarrier.wait(rows_full.index(slot), tile // SLOTS & 1)
    tma.store_wait(0)  # the last tile's stores have read their slots
    if tile > 0:
        other = (1 - tile % SLOTS) * NUM_CONSUMERS + CONSUMER
        mbarrier.arrive(rows_empty.index(other), count=1)
    a_buffer = a_buffers.index(slot)
    b_buffer = b_buffers.index(slot)
    rows = (a_buffer.reshape([ROWS, BLOCK_D]), b_buffer.reshape([ROWS, BLOCK_D]))
    known = enter_norm(batch, head, first_row, sizes, norm, NORM, ROWS, D_LAYOUT)
    da = gl.full([ROWS, BLOCK_D], 0.0, gl.float32, D_LAYOUT)
    db = gl.full([ROWS, BLOCK_D], 0.0, gl.float32, D_LAYOUT)
    own_words = find_words(words, place, first_row, sizes, SIDE) if SIGNED else words
    for _ in range(members):
        if SIGNED and SIDE == "queries":
            end = gl.minimum(last_row + 1 + num_columns - num_rows, num_columns)
            da = take_head_by_signs(
                tile_blocks, own_blocks, number, rows[0], da, own_words, end, numbers,
                buffers, barriers, LIFTS, CAUSAL, S_LAYOUT, W_LAYOUT,
            )
        else:
            da, db = take_head(
                tile_blocks, own_blocks, number, rows, da, db, own_words, limits, sizes,
                numbers, buffers, barriers, first_row < num_rows, WEIGH, GRADIENT, FINISHES,
                IS_RELU, LIFTS, POWER, CAUSAL, SIDE, SIGNED, W_LAYOUT, PIECE, LAST_PIECE,
            )
            if SIGNED:
                own_words += count_head_words(num_columns, num_rows)
        number += tile_blocks[1] - tile_blocks[0]

    at = [batch, head, first_row, 0]
    if SIDE == "keys":
        store_rows(db * tail_w, b_buffer, db_rows, at)
    elif POWER != "none":
        seen = gl.maximum(limits, 1).to(gl.float32)
        seen = gl.convert_layout(seen, gl.SliceLayout(1, D_LAYOUT), assert_trivial=True)
        da = over_power(da, seen[:, None], alpha, POWER)
    da = leave_norm(da, tail_ds, slot, known, norm, NORM, D, CONSUMER)
    store_rows(da, a_buffer, da_rows, at)
    return number


@gluon.jit
def consume(
    keys, queries, buffers, barriers, words, sizes, numbers, norms,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, POWER: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    SIGNED: gl.constexpr, Q_NORM: gl.constexpr, K_NORM: gl.constexpr, D: gl.constexpr,
    PIECE: gl.constexpr, LAST_PIECE: gl.constexpr, CONSUMER: gl.constexpr,
):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile."""
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns = sizes
    clear_share(norms[0], CONSUMER)
    clear_share(norms[1], CONSUMER)
    number = 0
    for turn in range(count_turns(num_heads * row_tiles, CAUSAL)):
        tile = turn * 2 if SIDE == "both" else turn
        if SIDE != "queries":
            number = take_tile(
                turn, tile, number, keys, buffers, barriers, words, sizes, numbers, norms[0],
                WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, POWER, CAUSAL, "keys", SIDE,
                SIGNED, K_NORM, D, PIECE, LAST_PIECE, CONSUMER,
            )
        if SIDE != "keys":
            number = take_tile(
                turn, tile + (SIDE == "both"), number, queries, buffers, barriers, words, sizes,
                numbers, norms[1], WEIGH, GRADIENT, FINISHES, IS_RELU, LIFTS, POWER, CAUSAL,
                "queries", SIDE, SIGNED, Q_NORM, D, PIECE, LAST_PIECE, CONSUMER,
            )
    tma.store_wait(0)
    row = gl.program_id(0) * (buffers[0].shape[0] // SLOTS) + CONSUMER
    store_share(row, numbers[6], norms[0], D, CONSUMER)
    store_share(row, numbers[6], norms[1], D, CONSUMER)
