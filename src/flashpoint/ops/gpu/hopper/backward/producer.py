"""What is loaded, in which order, by the warp that does so; names as in ``kernel.py``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashpoint.ops.gpu.hopper.backward.weights import find_blocks
from flashpoint.ops.gpu.hopper.tiles import count_turns, load_async, locate_tile

SLOTS = gl.constexpr(2)  # tiles whose rows are in shared memory: this one's and the next one's


@gluon.jit
def find_tile(turn, sizes, CAUSAL: gl.constexpr, SIDE: gl.constexpr, LAUNCH: gl.constexpr):
    """Place of this program's turn-th tile among the launch's heads, its sample, head and rows.

    A launch starts where the one before has ended, the pass of the norms with the last heads: what
    that read and wrote last is still in the cache. Causal ones start with the longest tiles.
    """
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns = sizes
    place, row_tile = locate_tile(turn, num_heads, row_tiles, CAUSAL, SIDE == "queries")
    if not CAUSAL and LAUNCH != "queries":
        place = num_heads - 1 - place
    return place, (first_head + place) // H, (first_head + place) % H, row_tile


@gluon.jit
def load_block(block, at, buffers, full, stage):
    """Producer: a block to a stage of a ring."""
    mbarrier.expect(full.index(stage), block.block_type.nbytes)
    load_async(block, at, full.index(stage), buffers.index(stage))


@gluon.jit
def load_tile(
    turn, tile, number, descriptors, buffers, barriers, sizes, norm,
    CAUSAL: gl.constexpr, SIDE: gl.constexpr, LAUNCH: gl.constexpr, HAS_B: gl.constexpr,
    HAS_X: gl.constexpr,
):
    """Rows of every consumer, then c_0, d_0, c_1, d_1, ...; gives the next block's number."""
    a, b, c, d, da, db = descriptors
    a_buffers, b_buffers, c_buffers, d_buffers = buffers
    x, x_buffers, gain, dgain, shares, statistics = norm
    rows_full, rows_empty, c_full, d_full, empty = barriers
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns = sizes
    BLOCK: gl.constexpr = c.block_shape[2]
    STAGES: gl.constexpr = c_buffers.shape[0]
    ROWS: gl.constexpr = a.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = a_buffers.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    place, batch, head, row_tile = find_tile(turn, sizes, CAUSAL, SIDE, LAUNCH)
    first_row = row_tile * BLOCK_ROWS
    for consumer in gl.static_range(NUM_CONSUMERS):
        slot = tile % SLOTS * NUM_CONSUMERS + consumer
        full = rows_full.index(slot)
        mbarrier.wait(rows_empty.index(slot), (tile // SLOTS & 1) ^ 1)
        mbarrier.expect(full, a.block_type.nbytes * (1 + HAS_B + HAS_X))
        at = [batch, head, first_row + consumer * ROWS, 0]
        if HAS_X:
            load_async(x, at, full, x_buffers.index(slot))
        load_async(a, at, full, a_buffers.index(slot))
        if HAS_B:
            load_async(b, at, full, b_buffers.index(slot))
    last_row = first_row + BLOCK_ROWS - 1
    first, last, masked = find_blocks(first_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
    column_head = head // group
    members = 1
    if SIDE == "keys":
        column_head = head * group
        members = group
    for member in range(members):
        for step in range(last - first):
            block = first + step if SIDE == "keys" else last - 1 - step
            at = [batch, column_head + member, block * BLOCK, 0]
            stage = number % STAGES
            mbarrier.wait(empty.index(stage), (number // STAGES & 1) ^ 1)
            load_block(c, at, c_buffers, c_full, stage)
            load_block(d, at, d_buffers, d_full, stage)
            number += 1
    return number


@gluon.jit
def produce(
    keys, queries, buffers, barriers, sizes, norms,
    CAUSAL: gl.constexpr, SIDE: gl.constexpr, SIGNED: gl.constexpr,
    Q_NORM: gl.constexpr, K_NORM: gl.constexpr,
):
    """Producer warp: what the tiles of this program need, in the consumers' order."""
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns = sizes
    number = 0
    for turn in range(count_turns(num_heads * row_tiles, CAUSAL)):
        tile = turn * 2 if SIDE == "both" else turn
        if SIDE != "queries":
            number = load_tile(
                turn, tile, number, keys, buffers, barriers, sizes, norms[0], CAUSAL, "keys",
                SIDE, True, K_NORM != "none",
            )
        if SIDE != "keys":
            number = load_tile(
                turn, tile + (SIDE == "both"), number, queries, buffers, barriers, sizes,
                norms[1], CAUSAL, "queries", SIDE, not SIGNED, Q_NORM != "none",
            )
