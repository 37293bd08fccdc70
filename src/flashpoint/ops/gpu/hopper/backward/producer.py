"""What is loaded, in which order, by the warp that does so; names as in ``kernel.py``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashpoint.ops.gpu.hopper.backward.weights import find_blocks
from flashpoint.ops.gpu.hopper.pieces import load_pieces
from flashpoint.ops.gpu.hopper.tiles import count_turns, locate_tile


@gluon.jit
def find_tile(turn, sizes, CAUSAL: gl.constexpr, SIDE: gl.constexpr, LAUNCH: gl.constexpr):
    """Place of this program's turn-th tile among the launch's heads, its sample, head and rows.

    A launch starts where the one before has ended, the pass of the norms with the last heads: what
    that read and wrote last is still in the cache. Causal ones start with the longest tiles.
    """
    num_heads, first_head, section = sizes.num_heads, sizes.first_head, sizes.section
    LAST_FIRST: gl.constexpr = SIDE == "queries"
    place, row_tile = locate_tile(turn, num_heads, section, sizes.row_tiles, CAUSAL, LAST_FIRST)
    if not CAUSAL and LAUNCH != "queries":
        place = num_heads - 1 - place
    return place, (first_head + place) // sizes.H, (first_head + place) % sizes.H, row_tile


@gluon.jit
def load_tile(turn, tile, number, side, program):
    """Rows of every consumer, then c_0, d_0, c_1, d_1, ...; gives the next block's number."""
    a, b, c, d, norm = side.a, side.b, side.c, side.d, side.norm
    rows, columns, sizes = program.rows, program.columns, program.sizes
    SIDE: gl.constexpr = side.SIDE
    CAUSAL: gl.constexpr = program.options.CAUSAL
    HAS_B: gl.constexpr = side.FROM == "both"
    HAS_X: gl.constexpr = norm.KIND != "none"
    PIECES: gl.constexpr = program.options.PIECES
    SLOTS: gl.constexpr = program.options.SLOTS
    BLOCK: gl.constexpr = c.block_shape[2]
    STAGES: gl.constexpr = columns.empty.shape[0]
    ROWS: gl.constexpr = a.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = rows.full.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    place, batch, head, row_tile = find_tile(turn, sizes, CAUSAL, SIDE, program.options.LAUNCH)
    first_row = row_tile * BLOCK_ROWS
    for consumer in gl.static_range(NUM_CONSUMERS):
        slot = tile % SLOTS * NUM_CONSUMERS + consumer
        full = rows.full.index(slot)
        mbarrier.wait(rows.empty.index(slot), (tile // SLOTS & 1) ^ 1)
        mbarrier.expect(full, a.block_type.nbytes * PIECES * (1 + HAS_B + HAS_X))
        row = first_row + consumer * ROWS
        if HAS_X:
            load_pieces(norm.x, batch, head, row, full, norm.buffers, slot, PIECES)
        load_pieces(a, batch, head, row, full, rows.a_buffers, slot, PIECES)
        if HAS_B:
            load_pieces(b, batch, head, row, full, rows.b_buffers, slot, PIECES)
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
            of, first_column = column_head + member, block * BLOCK
            stage = number % STAGES
            mbarrier.wait(columns.empty.index(stage), (number // STAGES & 1) ^ 1)
            full = columns.c_full.index(stage)
            mbarrier.expect(full, c.block_type.nbytes * PIECES)
            load_pieces(c, batch, of, first_column, full, columns.c_buffers, stage, PIECES)
            full = columns.d_full.index(stage)
            mbarrier.expect(full, d.block_type.nbytes * PIECES)
            load_pieces(d, batch, of, first_column, full, columns.d_buffers, stage, PIECES)
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
            number = load_tile(turn, tile, number, program.keys, program)
        if LAUNCH != "keys":
            number = load_tile(turn, tile + (LAUNCH == "both"), number, program.queries, program)
