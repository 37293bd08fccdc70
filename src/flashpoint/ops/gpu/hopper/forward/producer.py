"""What is loaded, in which order, and K normalized on the way; names as in ``kernel.py``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashpoint.ops.gpu.hopper.qk_norm import normalize_buffer
from flashpoint.ops.gpu.hopper.tiles import count_turns, load_async, locate_tile


@gluon.jit
def count_blocks(last_row, sizes, BLOCK_KEYS: gl.constexpr, CAUSAL: gl.constexpr):
    """Key blocks that rows up to last_row see, at least 1: one out of sight is masked whole."""
    B, H, group, row_tiles, Lq, Lk = sizes
    keys = Lk
    if CAUSAL:
        keys = gl.maximum(gl.minimum(last_row + 1 + Lk - Lq, Lk), 1)
    return gl.cdiv(keys, BLOCK_KEYS)


@gluon.jit
def produce(descriptors, buffers, barriers, sizes, CAUSAL: gl.constexpr):
    """Producer warp: per tile Q for every consumer, then K_0, V_0, K_1, V_1, ..."""
    q, k, v, o = descriptors
    q_buffers, k_buffers, v_buffers, o_buffers = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    B, H, group, row_tiles, Lq, Lk = sizes
    STAGES: gl.constexpr = k_buffers.shape[0]
    BLOCK_KEYS: gl.constexpr = k.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = q_buffers.shape[0]
    ROWS: gl.constexpr = q.block_shape[2]
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, row_tiles, CAUSAL, True)
        batch, head = batch_head // H, batch_head % H
        first_row = row_tile * BLOCK_ROWS
        for consumer in gl.static_range(NUM_CONSUMERS):
            full = q_full.index(consumer)
            mbarrier.wait(q_empty.index(consumer), (turn & 1) ^ 1)
            mbarrier.expect(full, q.block_type.nbytes)
            at = [batch, head, first_row + consumer * ROWS, 0]
            load_async(q, at, full, q_buffers.index(consumer))
        last_row = gl.minimum(first_row + BLOCK_ROWS, Lq) - 1
        for step in range(count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)):
            stage = block % STAGES
            parity = (block // STAGES & 1) ^ 1
            at = [batch, head // group, step * BLOCK_KEYS, 0]
            mbarrier.wait(k_empty.index(stage), parity)
            mbarrier.expect(k_full.index(stage), k.block_type.nbytes)
            load_async(k, at, k_full.index(stage), k_buffers.index(stage))
            mbarrier.wait(v_empty.index(stage), parity)
            mbarrier.expect(v_full.index(stage), v.block_type.nbytes)
            load_async(v, at, v_full.index(stage), v_buffers.index(stage))
            block += 1


@gluon.jit
def normalize_keys(
    descriptors, buffers, k_full, k_ready, sizes, norms,
    CAUSAL: gl.constexpr, K_NORM: gl.constexpr, ROOTS_LAST: gl.constexpr, D: gl.constexpr,
    PIECE: gl.constexpr,
):
    """Warpgroup between producer and consumers: every block of K becomes K-hat where it lies.

    Of the last one only PIECE keys, where that is not 0. If ROOTS_LAST, times the gain of q.
    """
    q, k, v, o = descriptors
    q_buffers, k_buffers, v_buffers, o_buffers = buffers
    q_gain, k_gain, q_eps, k_eps = norms
    other_gain = q_gain if ROOTS_LAST else None
    B, H, group, row_tiles, Lq, Lk = sizes
    STAGES: gl.constexpr = k_buffers.shape[0]
    BLOCK_KEYS: gl.constexpr = k.block_shape[2]
    BLOCK_ROWS: gl.constexpr = q.block_shape[2] * q_buffers.shape[0]
    block = 0
    for turn in range(count_turns(B * H * row_tiles, CAUSAL)):
        batch_head, row_tile = locate_tile(turn, B * H, row_tiles, CAUSAL, True)
        last_row = gl.minimum((row_tile + 1) * BLOCK_ROWS, Lq) - 1
        num_blocks = count_blocks(last_row, sizes, BLOCK_KEYS, CAUSAL)
        for step in range(num_blocks):
            stage = block % STAGES
            mbarrier.wait(k_full.index(stage), block // STAGES & 1)
            buffer = k_buffers.index(stage).reshape([BLOCK_KEYS, k_buffers.shape[4]])
            num_keys = Lk - step * BLOCK_KEYS
            if PIECE > 0 and step == num_blocks - 1:
                normalize_buffer(
                    buffer.slice(0, PIECE), num_keys, k_gain, k_eps, K_NORM, D, other_gain
                )
            else:
                normalize_buffer(buffer, num_keys, k_gain, k_eps, K_NORM, D, other_gain)
            mbarrier.arrive(k_ready.index(stage), count=1)
            block += 1
