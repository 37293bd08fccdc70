"""A head dim in pieces, tuples of blocks [rows, columns]: one up to 128, three of 64 for 192.

Blocks have powers of two along each axis. A contraction over the head dim adds up its pieces, a
result [rows, head dim] has an accumulator for each. In a ring, block number t has the places
t * PIECES and on. ``reading.split_dim`` says which head dims have how many.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashpoint.ops.gpu.hopper.tiles import load_async, store_async


@gluon.jit
def find_pieces(buffers, number, PIECES: gl.constexpr):
    """Block ``number`` of a ring in shared memory, as the copy engine takes it."""
    return [buffers.index(number * PIECES + piece) for piece in (0, 1, 2, 3)[:PIECES]]


@gluon.jit
def as_matrices(blocks):
    """What ``find_pieces`` gave as products take it."""
    return [block.reshape([block.shape[2], block.shape[3]]) for block in blocks]


@gluon.jit
def view_pieces(buffers, number, PIECES: gl.constexpr):
    """Block ``number`` of a ring as products take it."""
    return as_matrices(find_pieces(buffers, number, PIECES))


@gluon.jit
def cut_pieces(pieces, first, LENGTH: gl.constexpr):
    """LENGTH rows of each, from ``first`` on."""
    return [piece.slice(first, LENGTH) for piece in pieces]


@gluon.jit
def read_pieces(pieces, COUNT: gl.constexpr, LAYOUT: gl.constexpr):
    """The first COUNT of them in registers, which saves shared memory's time in products."""
    return [piece.load(LAYOUT) for piece in pieces[:COUNT]] + pieces[COUNT:]


@gluon.jit
def load_pieces(tensor, batch, head, row, full, buffers, number, PIECES: gl.constexpr):
    """Producer: rows of a tensor to block ``number`` of a ring; the caller expects the bytes."""
    for piece in gl.static_range(PIECES):
        at = [batch, head, row, piece * tensor.block_shape[3]]
        load_async(tensor, at, full, buffers.index(number * PIECES + piece))


@gluon.jit
def store_pieces(values, blocks, tensor, batch, head, row):
    """Start the store of fp32 values by blocks of a ring; what is behind the tensor is clipped."""
    for piece in gl.static_range(len(values)):
        blocks[piece].reshape(values[piece].shape).store(values[piece].to(tensor.dtype))
    fence_async_shared()
    for piece in gl.static_range(len(values)):
        at = [batch, head, row, piece * tensor.block_shape[3]]
        store_async(tensor, at, blocks[piece])


@gluon.jit
def make_zeros(ROWS: gl.constexpr, PIECES: gl.constexpr, LAYOUT: gl.constexpr):
    """Accumulators of a result, each as wide as LAYOUT's instruction."""
    COLUMNS: gl.constexpr = LAYOUT.instr_shape[1]
    return [gl.full([ROWS, COLUMNS], 0.0, gl.float32, LAYOUT) for _ in (0, 1, 2, 3)[:PIECES]]


@gluon.jit
def start_transposed(left, right, LAYOUT: gl.constexpr, offset=None):
    """Start left right^T, plus an offset of rows or columns if there is one.

    Of pieces of [ROWS, D], in registers or not, and of [BLOCK, D].
    """
    total = gl.full([left[0].shape[0], right[0].shape[0]], 0.0, gl.float32, LAYOUT)
    HAS_OFFSET: gl.constexpr = offset is not None
    if HAS_OFFSET:
        total = gl.broadcast(offset, total)[0]
    for piece in gl.static_range(len(left)):
        total = warpgroup_mma(
            left[piece], right[piece].permute([1, 0]), total,
            use_acc=HAS_OFFSET or piece > 0, is_async=True,
        )
    return total


@gluon.jit
def start_products(left, right, totals):
    """Start totals += left right of [ROWS, BLOCK] in registers and pieces of [BLOCK, D]."""
    return [
        warpgroup_mma(left, right[piece], totals[piece], is_async=True)
        for piece in (0, 1, 2, 3)[:len(right)]
    ]


@gluon.jit
def wait_for(totals, others, OUTSTANDING: gl.constexpr):
    """Wait for all products but so many; others are registers that these read or that follow."""
    PIECES: gl.constexpr = len(totals)
    results = totals + others
    if len(results) == 1:
        return (warpgroup_mma_wait(OUTSTANDING, deps=results),), ()
    else:
        results = warpgroup_mma_wait(OUTSTANDING, deps=results)
        return results[:PIECES], results[PIECES:]
