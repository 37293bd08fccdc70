"""What the kernels for Hopper share: barriers, how tiles are dealt out, rounding.

A barrier counts phases 0, 1, 2, ...; wait(barrier, parity) returns once
the last completed phase has that parity, and a fresh barrier passes wait(1). Block number t
(counted over all tiles of the program, by producer and consumers alike) uses stage t % STAGES in
turn u = t // STAGES.

    full[stage]   1 arrival (the producer's) and the bytes of the block; its phase u ends when
                  block t has landed. Consumers wait with parity u & 1.
    empty[stage]  NUM_CONSUMERS arrivals, one per warpgroup after it has read block t; that ends
                  phase u. The producer waits for phase u - 1, parity (u & 1) ^ 1.

A warpgroup arrives for turn u only after full's phase u, which the producer starts only after
empty's phase u - 1: no arrival can fall into an earlier phase, and no waiter is two phases behind.
"""

from typing import Any

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.core import _aggregate, base_value

from flashpoint.ops.gpu.reading import split_dim, tma_strides

# per thread of a consumer: what 65536 registers leave beside the producer's warpgroup
REGISTERS = {2: 240, 3: 160, 4: 112}
REGISTERS_NORMED = {2: 200}  # the same beside a warpgroup that normalizes
NORM_REGISTERS = gl.constexpr(88)  # of that one's threads
DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}

# the copy engine's two ways; Triton renamed them in 3.8, and in 3.9 the old names raise
if hasattr(tma, "async_load"):
    load_async, store_async = tma.async_load, tma.async_store
else:
    load_async, store_async = tma.async_copy_global_to_shared, tma.async_copy_shared_to_global


@builtin
def _add_async(tensor_desc: Any, coord: Any, src: Any, _semantic: Any = None) -> None:
    """As Triton has it from 3.7 on."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, tensor_desc.handle, coord, src.handle)


# as a store by the copy engine, which adds to what is there
add_async = getattr(tma, "async_atomic_add", _add_async)


@builtin
def view_as(buffers: Any, shape: Any, layout: Any, _semantic: Any = None) -> Any:
    """Shared memory as blocks of another shape; Triton's method has another name in 3.9."""
    method = buffers.reinterpret if hasattr(buffers, "reinterpret") else buffers._reinterpret
    return method(buffers.dtype, shape, layout, _semantic=_semantic)


def aggregate(fields: type) -> Any:
    """Values of a kernel by name, handed on as one: ``Ring(buffers=a, full=b, empty=c)``.

    Any value may be in a field, numbers to compile in too. Triton's own form of this is private
    up to 3.8, and asks for a constructor there.
    """

    def __init__(self: Any, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    __init__.__triton_builtin__ = True
    fields.__init__ = __init__
    return _aggregate(fields)


@aggregate
class Ring:
    """Blocks in shared memory, one after another, and their barriers."""

    buffers: base_value
    full: base_value
    empty: base_value


@gluon.jit
def clip(scores, DTYPE: gl.constexpr):
    """max(scores, 0) as DTYPE by one instruction for two; NaN stays NaN."""
    if DTYPE == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [scores], gl.bfloat16, True, 2
        )
    else:
        return gl.inline_asm_elementwise(
            "cvt.rn.relu.f16x2.f32 $0, $2, $1;", "=r,r,r", [scores], gl.float16, True, 2
        )


@gluon.jit
def make_barriers(NUM: gl.constexpr, ARRIVALS: gl.constexpr):
    """NUM barriers whose phases end after so many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(barriers.index(index), count=ARRIVALS)
    return barriers


@gluon.jit
def make_buffers(descriptor, NUM: gl.constexpr):
    """Shared memory for NUM blocks of a descriptor's."""
    shape: gl.constexpr = [NUM] + descriptor.block_shape
    return gl.allocate_shared_memory(descriptor.dtype, shape, descriptor.layout)


@gluon.jit
def take_turn(turns, block, SCHEDULE: gl.constexpr, CONSUMER: gl.constexpr):
    """Wait until products of this block may start; only some schedules have an order."""
    if SCHEDULE == "turns" or SCHEDULE == "relay":
        mbarrier.wait(turns.index(CONSUMER), block & 1)


@gluon.jit
def pass_turn(turns, SCHEDULE: gl.constexpr, CONSUMER: gl.constexpr):
    """Let the next warpgroup start its products."""
    if SCHEDULE == "turns" or SCHEDULE == "relay":
        mbarrier.arrive(turns.index((CONSUMER + 1) % turns.shape[0]), count=1)


@gluon.jit
def deal(turn, programs, CAUSAL: gl.constexpr):
    """Place of this program in a round of tiles; causal rounds alternate, to even out lengths."""
    program = gl.program_id(0)
    if CAUSAL:
        program = gl.where(turn % 2 == 0, program, programs - 1 - program)
    return program


@gluon.jit
def count_turns(tiles, CAUSAL: gl.constexpr):
    """Number of tiles of this program."""
    programs = gl.num_programs(0)
    turns = tiles // programs
    return turns + gl.where(deal(turns, programs, CAUSAL) < tiles - turns * programs, 1, 0)


@gluon.jit
def locate_tile(turn, heads, section, row_tiles, CAUSAL: gl.constexpr, LAST_FIRST: gl.constexpr):
    """Head (of all samples') and row tile of this program's turn-th tile.

    Causal: the longest ones first, in sections of ``section`` heads where it is not None
    (``gpu/sections.py``). Else a head's tiles are neighbours in a round; where rounds are whole
    heads, a program would meet the same row tile in all of them, and the last one has fewer rows,
    so that they move on by one a round.
    """
    programs = gl.num_programs(0)
    tile = turn * programs + deal(turn, programs, CAUSAL)
    if CAUSAL:
        first = 0
        if section is not None:
            first = tile // (section * row_tiles) * section
            tile -= first * row_tiles
            heads = gl.minimum(section, heads - first)
        row_tile = tile // heads
        if LAST_FIRST:
            row_tile = row_tiles - 1 - row_tile
        head = first + tile % heads
    else:
        row_tile = (tile + gl.where(programs % row_tiles == 0, turn, 0)) % row_tiles
        head = tile // row_tiles
    return head, row_tile


def describe(x: Tensor, rows: int) -> TensorDescriptor:
    """[B, H, L, D] for blocks of [1, 1, rows, columns of a piece of D]."""
    block = [1, 1, rows, split_dim(x.shape[3])[0]]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), tma_strides(x), block, layout)


def describe_sums(x: Tensor, rows: int = 64, columns: int = 64) -> TensorDescriptor:
    """fp32 sums [B, H, L, D] for blocks of [1, 1, rows, columns]."""
    block = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float32)
    return TensorDescriptor(x, list(x.shape), tma_strides(x), block, layout)
