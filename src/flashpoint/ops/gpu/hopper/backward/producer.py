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
    num_heads, first_head = sizes.num_heads, sizes.first_head
    place, row_tile = locate_tile(turn, num_heads, sizes.row_tiles, CAUSAL, SIDE == "queries")
    if not CAUSAL and LAUNCH != "queries":
        place = num_heads - 1 - place
    return place, (first_head + place) // sizes.H, (first_head + place) % sizes.H, row_tile


@gluon.jit
def load_block(block, at, buffers, full, stage):
    """Producer: a block to a stage of a ring."""
    mbarrier.expect(full.index(stage), block.block_type.nbytes)
    load_async(block, at, full.index(stage), buffers.index(stage))


@gluon.jit
def load_tile(turn, tile, number, side, program, HAS_B: gl.constexpr):
    """Rows of every consumer, then c_0, d_0, c_1, d_1, ...; gives the next block's number."""
    a, b, c, d, norm = side.a, side.b, side.c, side.d, side.norm
    rows, columns, sizes = program.rows, program.columns, program.sizes
    SIDE: gl.constexpr = side.SIDE
    CAUSAL: gl.constexpr = program.options.CAUSAL
    HAS_X: gl.constexpr = norm.KIND != "none"
    BLOCK: gl.constexpr = c.block_shape[2]
    STAGES: gl.constexpr = columns.c_buffers.shape[0]
    ROWS: gl.constexpr = a.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = rows.a_buffers.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    place, batch, head, row_tile = find_tile(turn, sizes, CAUSAL, SIDE, program.options.LAUNCH)
    first_row = row_tile * BLOCK_ROWS
    for consumer in gl.static_range(NUM_CONSUMERS):
        slot = tile % SLOTS * NUM_CONSUMERS + consumer
        full = rows.full.index(slot)
        mbarrier.wait(rows.empty.index(slot), (tile // SLOTS & 1) ^ 1)
        mbarrier.expect(full, a.block_type.nbytes * (1 + HAS_B + HAS_X))
        at = [batch, head, first_row + consumer * ROWS, 0]
        if HAS_X:
            load_async(norm.x, at, full, norm.buffers.index(slot))
        load_async(a, at, full, rows.a_buffers.index(slot))
        if HAS_B:
            load_async(b, at, full, rows.b_buffers.index(slot))
    last_row = first_row + BLOCK_ROWS - 1
    first, last, masked = find_blocks(first_row, last_row, sizes, BLOCK, SIDE, CAUSAL)
    column_head = head // sizes.group
    members = 1
    if SIDE == "keys":
        column_head = head * sizes.group
        members = sizes.group
    for member in range(members):
        for step in range(last - first):
            block = first + step if SIDE == "keys" else last - 1 - step
            at = [batch, column_head + member, block * BLOCK, 0]
            stage = number % STAGES
            mbarrier.wait(columns.empty.index(stage), (number // STAGES & 1) ^ 1)
            load_block(c, at, columns.c_buffers, columns.c_full, stage)
            load_block(d, at, columns.d_buffers, columns.d_full, stage)
            number += 1
    return number


@gluon.jit
def produce(program):
    """Producer warp: what the tiles of this program need, in the consumers' order."""
    sizes, options = program.sizes, program.options
    LAUNCH: gl.constexpr = options.LAUNCH
    number = 0
    for turn in range(count_turns(sizes.num_heads * sizes.row_tiles, options.CAUSAL)):
        tile = turn * 2 if LAUNCH == "both" else turn
        if LAUNCH != "queries":
            number = load_tile(turn, tile, number, program.keys, program, True)
        if LAUNCH != "keys":
            number = load_tile(
                turn, tile + (LAUNCH == "both"), number, program.queries, program,
                not options.SIGNED,
            )
