"""Backward for Hopper in one pass: every score is made once, and five products follow from it.

A program keeps keys and streams queries past them, as SIDE keys of ``kernel.py`` does, whose names
these are. What it adds to dq of a block of queries leaves at once, for sums in memory:

    S = k q^T, dW = v do^T  ->  W, dS  ->  dv += W do, dk += dS q  (W and dS in registers)
                                       ->  dq_sums += dS^T k       (dS in shared memory)

All of a tile's keys meet in dq. So each warpgroup writes its dS [ROWS, BLOCK] where all can read
it, and makes dq of 64 of the block's queries over all keys. The copy engine adds it to fp32 sums
in memory on its way out. dq of a block is made beside the products of the next one, so that
warpgroups may be a block apart.

    ds full[n % 2]   an arrival of each warpgroup that has written dS of block number n
    ds empty[n % 2]  one of each that has read it

Slots of rows hold k until all have made dq of the tile's last block: whoever is done waits for its
"empty" before dk leaves by that slot. No circle of waits: dS of block n is written once all have
made dq of block n - 2, which waits for dS of block n - 2 alone.

Where PLACE is None, a loop takes a block's parts one by one, and dq stands before it, since no
product may be in flight at a loop's end. The code of each warpgroup is half as long then, which
counts once both exceed the cache for instructions: of gelu, 52 KB, a quarter of all cycles waited.

k and v are in registers, too. Products of 64 x 64 from shared memory ask for more of it than it
gives: 384 KB for 128 keys and 128 queries, 3,072 cycles where products take 2,560. With k and v in
registers it is 320 KB.

Causal tiles start at the diagonal, and their masked loop may be empty, which ``kernel.py`` avoids
for the sake of ptxas 12.8. Tests read the machine code here too: no register is read that nothing
has written.

Programs add in any order, so that dq differs in its last bits from call to call: ``once.py`` says
whom one pass serves.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import base_value

from flashpoint.ops.gpu.hopper.backward.arguments import (
    Columns,
    Norm,
    Numbers,
    Options,
    Program,
    Rows,
    Side,
    Sizes,
)
from flashpoint.ops.gpu.hopper.backward.consumer import count_places, find_offsets
from flashpoint.ops.gpu.hopper.backward.producer import find_tile, produce
from flashpoint.ops.gpu.hopper.backward.weights import (
    differentiate,
    find_blocks,
    spread,
    weigh,
)
from flashpoint.ops.gpu.hopper.pieces import (
    find_pieces,
    make_zeros,
    read_pieces,
    start_products,
    start_transposed,
    store_pieces,
    view_pieces,
    wait_for,
)
from flashpoint.ops.gpu.hopper.tiles import (
    add_async,
    aggregate,
    count_turns,
    make_barriers,
    make_buffers,
    view_as,
)

PART = gl.constexpr(64)  # queries whose scores are in registers at a time


@aggregate
class Shared:
    """dS of two blocks for all warpgroups, its barriers, and what dq leaves by and for.

    PLACE: the part of a block beside which dq of the block before is made. None: before all of
    them, which are then taken by a loop.
    """

    buffers: base_value
    full: base_value
    empty: base_value
    leaving: base_value
    sums: base_value
    PLACE: base_value


@gluon.jit
def start_dq(number, keys, shared, CONSUMER: gl.constexpr):
    """Start dq of this warpgroup's part of block ``number``, over all keys of the tile.

    keys: [ROWS, D] of each warpgroup.
    """
    NUM_CONSUMERS: gl.constexpr = len(keys)
    COLUMNS: gl.constexpr = shared.leaving.shape[4]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    turn = number % 2
    mbarrier.wait(shared.full.index(turn), number // 2 & 1)
    dq = gl.full([PART, COLUMNS], 0.0, gl.float32, LAYOUT)
    for other in gl.static_range(NUM_CONSUMERS):
        ds = find_dscores(turn, other, CONSUMER, NUM_CONSUMERS, shared).permute([1, 0])
        dq = warpgroup_mma(ds, keys[other], dq, use_acc=other > 0, is_async=True)
    return dq


@gluon.jit
def find_dscores(turn, consumer, part, NUM_CONSUMERS: gl.constexpr, shared):
    """dS [ROWS, PART] of a warpgroup's keys and a part's queries, for one of both turns.

    A block has a part for each warpgroup, which makes dq of it.
    """
    return shared.buffers.index((turn * NUM_CONSUMERS + consumer) * NUM_CONSUMERS + part)


@gluon.jit
def leave_dq(dq, number, at, tail, shared, CONSUMER: gl.constexpr):
    """Give dS of a block back, and add tail dq to the sums; at: sample, head, first row."""
    batch, head, row = at
    mbarrier.arrive(shared.empty.index(number % 2), count=1)
    leaving = shared.leaving.index(CONSUMER)
    tma.store_wait(0)  # what left before it has been read
    leaving.reshape(dq.shape).store(dq * tail)
    fence_async_shared()
    add_async(shared.sums, [batch, head, row + CONSUMER * dq.shape[0], 0], leaving)


@gluon.jit
def fetch_offsets(offsets, first, program, LAYOUT: gl.constexpr):
    """e_i of a part's queries, [1, PART] to add to dW; 0 where there are none."""
    if program.offsets is None:
        return 0.0
    else:
        tile = gl.full([program.rows.a_buffers.shape[3], PART], 0, gl.int32, LAYOUT)
        near, far = spread(first, tile)
        return gl.load(offsets + (near + far))[None, :]


@gluon.jit
def find_part(number, place, program):
    """PART queries of block ``number`` in shared memory, and their do."""
    columns = program.columns
    STAGES: gl.constexpr = columns.empty.shape[0]
    PARTS: gl.constexpr = columns.c_buffers.shape[3] // PART
    COLUMNS: gl.constexpr = columns.c_buffers.shape[4]
    DTYPE: gl.constexpr = columns.c_buffers.dtype
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PART, COLUMNS], DTYPE)
    at = number % STAGES * PARTS + place
    shape: gl.constexpr = [STAGES * PARTS, PART, COLUMNS]
    q = view_as(columns.c_buffers, shape, LAYOUT).index(at)
    do = view_as(columns.d_buffers, shape, LAYOUT).index(at)
    return (q,), (do,)


@gluon.jit
def take_part(
    block, place, number, at, rows, keys, da, db, offsets, limits, program, shared,
    MASKED: gl.constexpr, HAS_DQ: gl.constexpr, CONSUMER: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """One part of a block: S, dW | W, dS | dk, dv, and perhaps dq of the block before.

    place: its number, which may be one to compile in.
    """
    columns = program.columns
    a, b = rows
    NUM_CONSUMERS: gl.constexpr = len(keys)
    STAGES: gl.constexpr = columns.empty.shape[0]
    BLOCK: gl.constexpr = columns.c_buffers.shape[3]
    DTYPE: gl.constexpr = columns.c_buffers.dtype
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    stage = number % STAGES
    parity = number // STAGES & 1
    turn = number % 2
    first = block * BLOCK + place * PART
    c, d = find_part(number, place, program)
    offset = fetch_offsets(offsets, first, program, LAYOUT)
    if place == 0:
        mbarrier.wait(columns.c_full.index(stage), parity)
    scores = start_transposed(a, c, LAYOUT)
    if place == 0:
        mbarrier.wait(columns.d_full.index(stage), parity)
    dweights = start_transposed(b, d, LAYOUT)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights, signs = weigh(scores, limits, first, program, "keys", MASKED, DTYPE)
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    if program.offsets is not None:
        dweights += offset
    dscores = differentiate(dweights, signs, limits, first, program, "keys", MASKED, DTYPE)
    if place == 0:
        mbarrier.wait(shared.empty.index(turn), (number // 2 & 1) ^ 1)
    find_dscores(turn, CONSUMER, place, NUM_CONSUMERS, shared).store(dscores)
    if place == BLOCK // PART - 1:
        fence_async_shared()
        mbarrier.arrive(shared.full.index(turn), count=1)
    dscores = gl.convert_layout(dscores, W_LAYOUT, assert_trivial=True)
    weights = gl.convert_layout(weights, W_LAYOUT, assert_trivial=True)
    if HAS_DQ:
        dq = start_dq(number - 1, keys, shared, CONSUMER)
    da = start_products(dscores, c, da)
    db = start_products(weights, d, db)
    if HAS_DQ:
        dq = warpgroup_mma_wait(2, deps=[dq])
        leave_dq(dq, number - 1, at, program.numbers.tail_ds, shared, CONSUMER)
    da, db = wait_for(da, db, 0)
    if place == BLOCK // PART - 1:
        mbarrier.arrive(columns.empty.index(stage), count=1)
    return da, db


@gluon.jit
def take_block(
    block, number, at, rows, keys, da, db, offsets, limits, program, shared,
    MASKED: gl.constexpr, FIRST: gl.constexpr, CONSUMER: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """One block of queries, and dq of the one before unless this is the FIRST of a tile.

    at: sample, head and first row of that one.
    """
    PARTS: gl.constexpr = program.columns.c_buffers.shape[3] // PART
    if shared.PLACE is None:
        if not FIRST:
            dq = warpgroup_mma_wait(0, deps=[start_dq(number - 1, keys, shared, CONSUMER)])
            leave_dq(dq, number - 1, at, program.numbers.tail_ds, shared, CONSUMER)
        for place in range(PARTS):
            da, db = take_part(
                block, place, number, at, rows, keys, da, db, offsets, limits, program, shared,
                MASKED, False, CONSUMER, W_LAYOUT,
            )
    else:
        for place in gl.static_range(PARTS):
            da, db = take_part(
                block, place, number, at, rows, keys, da, db, offsets, limits, program, shared,
                MASKED, place == shared.PLACE and not FIRST, CONSUMER, W_LAYOUT,
            )
    return da, db


@gluon.jit
def take_head(
    blocks, number, batch, head, rows, keys, da, db, offsets, limits, program, shared,
    CONSUMER: gl.constexpr, W_LAYOUT: gl.constexpr,
):
    """All blocks of one head's queries; number: that of the first."""
    first, last, masked = blocks
    BLOCK: gl.constexpr = program.columns.c_buffers.shape[3]
    CAUSAL: gl.constexpr = program.options.CAUSAL
    da, db = take_block(
        first, number, (batch, head, 0), rows, keys, da, db, offsets, limits, program, shared,
        CAUSAL, True, CONSUMER, W_LAYOUT,
    )
    start = 1
    if CAUSAL:
        for step in range(1, masked):
            da, db = take_block(
                first + step, number + step, (batch, head, (first + step - 1) * BLOCK),
                rows, keys, da, db, offsets, limits, program, shared,
                True, False, CONSUMER, W_LAYOUT,
            )
        start = gl.maximum(masked, 1)
    for step in range(start, last - first):
        da, db = take_block(
            first + step, number + step, (batch, head, (first + step - 1) * BLOCK),
            rows, keys, da, db, offsets, limits, program, shared,
            False, False, CONSUMER, W_LAYOUT,
        )
    end = number + last - first - 1
    dq = warpgroup_mma_wait(0, deps=[start_dq(end, keys, shared, CONSUMER)])
    at = (batch, head, (last - 1) * BLOCK)
    leave_dq(dq, end, at, program.numbers.tail_ds, shared, CONSUMER)
    return da, db


@gluon.jit
def take_tile(turn, number, program, shared, CONSUMER: gl.constexpr):
    """This warpgroup's keys of one tile; gives the next block's number."""
    sizes, numbers, options, side = program.sizes, program.numbers, program.options, program.keys
    rows = program.rows
    SLOTS: gl.constexpr = options.SLOTS
    gl.static_assert(SLOTS == 2)
    BLOCK: gl.constexpr = side.c.block_shape[2]
    COLUMNS: gl.constexpr = side.c.block_shape[3]
    ROWS: gl.constexpr = side.a.block_shape[2]
    NUM_CONSUMERS: gl.constexpr = rows.full.shape[0] // SLOTS
    BLOCK_ROWS: gl.constexpr = ROWS * NUM_CONSUMERS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, D_LAYOUT, 2)
    place, batch, head, row_tile = find_tile(turn, sizes, options.CAUSAL, "keys", "keys")
    tile_row = row_tile * BLOCK_ROWS
    first_row = tile_row + CONSUMER * ROWS
    last_row = tile_row + BLOCK_ROWS - 1
    blocks = find_blocks(tile_row, last_row, sizes, BLOCK, "keys", options.CAUSAL)
    limits = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    limits += sizes.num_columns - sizes.num_rows

    slot = turn % SLOTS * NUM_CONSUMERS
    for other in gl.static_range(NUM_CONSUMERS):
        mbarrier.wait(rows.full.index(slot + other), turn // SLOTS & 1)
    tma.store_wait(0)  # the last tile's stores have read their slots
    if turn > 0:
        before = (1 - turn % SLOTS) * NUM_CONSUMERS + CONSUMER
        mbarrier.arrive(rows.empty.index(before), count=1)
    keys = [
        view_pieces(rows.a_buffers, slot + other, 1)[0]
        for other in (0, 1, 2, 3)[:NUM_CONSUMERS]
    ]
    values = view_pieces(rows.b_buffers, slot + CONSUMER, 1)
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    held = (read_pieces([keys[CONSUMER]], 1, A_LAYOUT), read_pieces(values, 1, A_LAYOUT))
    da = make_zeros(ROWS, 1, D_LAYOUT)
    db = make_zeros(ROWS, 1, D_LAYOUT)
    offsets = find_offsets(batch, head, first_row, program, "keys", ROWS, S_LAYOUT)
    for member in range(sizes.group):
        da, db = take_head(
            blocks, number, batch, head * sizes.group + member, held, keys, da, db, offsets,
            limits, program, shared, CONSUMER, W_LAYOUT,
        )
        if program.offsets is not None:
            offsets += count_places(sizes.num_columns)
        number += blocks[1] - blocks[0]
    end = number - 1  # all have read keys for the last time
    mbarrier.wait(shared.empty.index(end % 2), end // 2 & 1)
    da = [piece * numbers.tail_ds for piece in da]
    db = [piece * numbers.tail_w for piece in db]
    a_blocks = find_pieces(rows.a_buffers, slot + CONSUMER, 1)
    b_blocks = find_pieces(rows.b_buffers, slot + CONSUMER, 1)
    store_pieces(db, b_blocks, side.db, batch, head, first_row)
    store_pieces(da, a_blocks, side.da, batch, head, first_row)
    return number


@gluon.jit
def consume(program, shared, CONSUMER: gl.constexpr):
    """Warpgroup CONSUMER: rows [CONSUMER * ROWS, (CONSUMER + 1) * ROWS) of every tile."""
    sizes = program.sizes
    number = 0
    for turn in range(count_turns(sizes.num_heads * sizes.row_tiles, program.options.CAUSAL)):
        number = take_tile(turn, number, program, shared, CONSUMER)
    tma.store_wait(0)


@gluon.jit
def work(program, shared, WARPGROUP: gl.constexpr):
    """Consumers are warpgroups 0 to NUM_CONSUMERS - 1, the producer is the one after them."""
    NUM_CONSUMERS: gl.constexpr = program.rows.full.shape[0] // program.options.SLOTS
    if WARPGROUP < NUM_CONSUMERS:
        consume(program, shared, WARPGROUP)
    else:
        produce(program)


@gluon.jit(do_not_specialize=[
    "num_heads", "H", "group", "row_tiles", "num_rows", "num_columns",
])
def hopper_one_pass_kernel(
    q, do, k_rows, v_rows, dk, dv, dq_sums,           # descriptors
    offsets,                                          # pointer to e_i, or None
    num_heads, H, group, row_tiles, num_rows, num_columns,
    scale, bias_number, alpha, lift_w, lift_ds, tail_w, tail_ds,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    SLOPED: gl.constexpr, LIFTS: gl.constexpr, POWER: gl.constexpr, CAUSAL: gl.constexpr,
    D: gl.constexpr, NUM_CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, DEGREE: gl.constexpr, SLOTS: gl.constexpr,
    PLACE: gl.constexpr,
):
    """dk and dv, and dq added to dq_sums; for any grid."""
    NUM_SLOTS: gl.constexpr = SLOTS * NUM_CONSUMERS
    BLOCK: gl.constexpr = q.block_shape[2]
    ROWS: gl.constexpr = k_rows.block_shape[2]
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, PART], q.dtype)
    gl.static_assert(BLOCK == NUM_CONSUMERS * PART)
    a_buffers, b_buffers = make_buffers(k_rows, NUM_SLOTS), make_buffers(v_rows, NUM_SLOTS)
    c_buffers, d_buffers = make_buffers(q, STAGES), make_buffers(do, STAGES)
    NUM_DS: gl.constexpr = 2 * NUM_CONSUMERS * NUM_CONSUMERS
    ds_buffers = gl.allocate_shared_memory(q.dtype, [NUM_DS, ROWS, PART], DS_LAYOUT)
    leaving = make_buffers(dq_sums, NUM_CONSUMERS)
    rows_full, rows_empty = make_barriers(NUM_SLOTS, 1), make_barriers(NUM_SLOTS, 1)
    c_full, d_full = make_barriers(STAGES, 1), make_barriers(STAGES, 1)
    empty = make_barriers(STAGES, NUM_CONSUMERS)
    ds_full, ds_empty = make_barriers(2, NUM_CONSUMERS), make_barriers(2, NUM_CONSUMERS)
    fence_async_shared()

    shared = Shared(
        buffers=ds_buffers, full=ds_full, empty=ds_empty, leaving=leaving, sums=dq_sums,
        PLACE=PLACE,
    )
    norm = Norm(
        KIND="none", x=None, buffers=a_buffers, gain=None, dgain=None, shares=a_buffers,
        statistics=None,
    )
    keys = Side(
        SIDE="keys", FROM="both", a=k_rows, b=v_rows, c=q, d=do, da=dk, db=dv, norm=norm
    )
    program = Program(
        keys=keys, queries=keys,
        rows=Rows(a_buffers=a_buffers, b_buffers=b_buffers, full=rows_full, empty=rows_empty),
        columns=Columns(
            c_buffers=c_buffers, d_buffers=d_buffers, c_full=c_full, d_full=d_full, empty=empty
        ),
        words=None, offsets=offsets,
        sizes=Sizes(
            first_head=0, num_heads=num_heads, section=None, H=H, group=group,
            row_tiles=row_tiles, num_rows=num_rows, num_columns=num_columns,
        ),
        numbers=Numbers(
            scale=scale, bias_number=bias_number, alpha=alpha, lift_w=lift_w, lift_ds=lift_ds,
            tail_w=tail_w, tail_ds=tail_ds,
        ),
        options=Options(
            WEIGH=WEIGH, GRADIENT=GRADIENT, FINISHES=FINISHES, IS_RELU=IS_RELU, SLOPED=SLOPED,
            LIFTS=LIFTS, POWER=POWER, CAUSAL=CAUSAL, LAUNCH="keys", SIGNED=False, DEGREE=DEGREE,
            LAGS=False, D=D, PIECES=1, SLOTS=SLOTS, IN_REGISTERS=0, PIECE=0, LAST_PIECE=0,
        ),
    )
    gl.warp_specialize(
        [
            (work, (program, shared, warpgroup))
            for warpgroup in (0, 1, 2, 3, 4)[:NUM_CONSUMERS + 1]
        ],
        [4] * (NUM_CONSUMERS - 1) + [1],
        [CONSUMER_REGISTERS] * (NUM_CONSUMERS - 1) + [24],
    )
