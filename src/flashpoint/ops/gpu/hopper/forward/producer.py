"""What is loaded, in which order, and K normalized on the way; names as in ``kernel.py``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashpoint.ops.gpu.hopper.pieces import load_pieces
from flashpoint.ops.gpu.hopper.qk_norm import normalize_buffer
from flashpoint.ops.gpu.hopper.tiles import count_turns, locate_tile


@gluon.jit
def count_blocks(last_row, sizes, BLOCK_KEYS: gl.constexpr, CAUSAL: gl.constexpr):
    """Key blocks that rows up to last_row see, at least 1: one out of sight is masked whole."""
    keys = sizes.Lk
    if CAUSAL:
        keys = gl.maximum(gl.minimum(last_row + 1 + sizes.Lk - sizes.Lq, sizes.Lk), 1)
    return gl.cdiv(keys, BLOCK_KEYS)


@gluon.jit
def produce(program):
    """Producer warp: per tile Q for every consumer, then K_0, V_0, K_1, V_1, ..."""
    q, k, v, sizes = program.q, program.k, program.v, program.sizes
    queries, keys, values = program.queries, program.keys, program.values
    B, H, row_tiles = sizes.B, sizes.H, sizes.row_tiles
    CAUSAL: gl.constexpr = program.options.CAUSAL
    PIECES: gl.constexpr = program.options.PIECES
    STAGES: gl.constexpr = keys.full.shape[0]
    BLOCK_KEYS: gl.constexpr = k.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = queries.full.shape[0]
    ROWS: gl.constexpr = q.block_shape[2]
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, sizes.section, row_tiles, CAUSAL, True)
        batch, head = batch_head // H, batch_head % H
        first_row = row_tile * BLOCK_ROWS
        for consumer in gl.static_range(NUM_CONSUMERS):
            full = queries.full.index(consumer)
            mbarrier.wait(queries.empty.index(consumer), (turn & 1) ^ 1)
            mbarrier.expect(full, q.block_type.nbytes * PIECES)
            row = first_row + consumer * ROWS
            load_pieces(q, batch, head, row, full, queries.buffers, consumer, PIECES)
        last_row = gl.minimum(first_row + BLOCK_ROWS, sizes.Lq) - 1
        for step in range(count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)):
            stage = block % STAGES
            parity = (block // STAGES & 1) ^ 1
            key_head, key = head // sizes.group, step * BLOCK_KEYS
            full = keys.full.index(stage)
            mbarrier.wait(keys.empty.index(stage), parity)
            mbarrier.expect(full, k.block_type.nbytes * PIECES)
            load_pieces(k, batch, key_head, key, full, keys.buffers, stage, PIECES)
            full = values.full.index(stage)
            mbarrier.wait(values.empty.index(stage), parity)
            mbarrier.expect(full, v.block_type.nbytes * PIECES)
            load_pieces(v, batch, key_head, key, full, values.buffers, stage, PIECES)
            block += 1


@gluon.jit
def normalize_keys(program):
    """Warpgroup between producer and consumers: every block of K becomes K-hat where it lies.

    Of the last one only PIECE keys, where that is not 0. If ROOTS_LAST, times the gain of q.
    """
    sizes, norms, keys, options = program.sizes, program.norms, program.keys, program.options
    CAUSAL: gl.constexpr = options.CAUSAL
    PIECE: gl.constexpr = options.PIECE
    other_gain = norms.q_gain if options.ROOTS_LAST else None
    B, H, row_tiles = sizes.B, sizes.H, sizes.row_tiles
    STAGES: gl.constexpr = keys.full.shape[0]
    BLOCK_KEYS: gl.constexpr = program.k.block_shape[2]
    BLOCK_ROWS: gl.constexpr = program.q.block_shape[2] * program.queries.full.shape[0]
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, sizes.section, row_tiles, CAUSAL, True)
        last_row = gl.minimum((row_tile + 1) * BLOCK_ROWS, sizes.Lq) - 1
        num_blocks = count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)
        for step in range(num_blocks):
            stage = block % STAGES
            mbarrier.wait(keys.full.index(stage), block // STAGES & 1)
            buffer = keys.buffers.index(stage).reshape([BLOCK_KEYS, keys.buffers.shape[4]])
            num_keys = sizes.Lk - step * BLOCK_KEYS
            if PIECE > 0 and step == num_blocks - 1:
                normalize_buffer(
                    buffer.slice(0, PIECE), num_keys, norms.k_gain, norms.k_eps, options.K_NORM,
                    options.D, other_gain,
                )
            else:
                normalize_buffer(
                    buffer, num_keys, norms.k_gain, norms.k_eps, options.K_NORM, options.D,
                    other_gain,
                )
            mbarrier.arrive(program.k_ready.index(stage), count=1)
            block += 1
