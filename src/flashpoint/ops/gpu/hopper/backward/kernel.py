"""Backward for Hopper (sm_90a) in Gluon, built like the forward.

Formulas are in ``portable/backward.py``.

One kernel for both sides of the score matrix: a program keeps row blocks a, b in shared memory
and streams column blocks c, d past them.

    SIDE keys     a = k, b = v,   c = q, d = do,  da = dk, db = dv   (4 products)
    SIDE queries  a = q, b = do,  c = k, d = v,   da = dq            (3 products)

    S = a c^T, dW = b d^T  (wgmma)  ->  W = h(S), dS = dW h'(S), in registers
                                    ->  da += dS c, db += W d  (wgmma, register operands)

SIDE both, for short sequences: a program takes the tile of keys, then that of queries, of the same
rows of a head, while its neighbours take the head's other rows. So q, k, v and do are still in the
cache when they are read again, and every program has as much of the longer side as of the shorter
one.

SIGNED, for relu: the keys side stores the signs of its scores (``signs.py``), and the queries
side, which runs behind it, needs no scores:

    SIDE queries  a = do,         c = v, d = k,   da = dq            (2 products)
                  dW = a c^T  ->  dS = dW where S > 0  ->  da += dS d

Barriers are those of ``hopper/tiles.py``; c and d are full by themselves and empty together.
The producer's order is rows, c_0, d_0, c_1, d_1, ... No circle of waits: a consumer that waits for
c_t or d_t has released all before them. Rows have two slots per warpgroup, the same two barriers
with one arrival each, and the tile's number in place of t. Gradients leave through their rows'
slots, which are released at the start of the next tile, once the stores have read them. With a
norm the rows before it, x, are loaded too, to slots of their own, and da is taken back through the
norm on its way out (``hopper/qk_norm.py``), by the means and r that came with x-hat. What tiles
add to dgain is summed in shared memory: registers are full of accumulators.

Causal tiles start at the diagonal, so that their first loop, over masked blocks, runs at least
once and the compiler knows it. That is not for speed: where the first of two loops may run zero
times, ptxas 12.8 reuses what it computed ahead of it (descriptors of a and b) in the second one.
SIGNED queries have one loop. SIDE both has one per tile: a warpgroup with rows has two blocks or
more of columns for each, and one without rows meets neither.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from flashpoint.ops.gpu.activations import DEGREES
from flashpoint.ops.gpu.call import Call
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
from flashpoint.ops.gpu.hopper.backward.consumer import consume
from flashpoint.ops.gpu.hopper.backward.producer import SLOTS, produce
from flashpoint.ops.gpu.hopper.backward.signs import Work, count_words
from flashpoint.ops.gpu.hopper.qk_norm import make_shares
from flashpoint.ops.gpu.hopper.tiles import (
    REGISTERS,
    describe,
    make_barriers,
    make_buffers,
)
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.reading import block_of
from flashpoint.ops.gpu.replay import Recorder, Role, only


@gluon.jit
def work(program, WARPGROUP: gl.constexpr):
    """Consumers are warpgroups 0 to NUM_CONSUMERS - 1, the producer is the one after them."""
    NUM_CONSUMERS: gl.constexpr = program.rows.a_buffers.shape[0] // SLOTS
    if WARPGROUP < NUM_CONSUMERS:
        consume(program, WARPGROUP)
    else:
        produce(program)


@gluon.jit(do_not_specialize=[
    "first_head", "num_heads", "H", "group", "row_tiles", "num_rows", "num_columns",
])
def hopper_backward_kernel(
    q, k, v, do, q_rows, k_rows, v_rows, do_rows,  # descriptors of columns and of rows, and of
    dq, dk, dv, q_raw, k_raw,                      # rows again; those of other sides None
    words, offsets,                                # pointers to signs and to e_i, or None
    q_gain, k_gain, dq_gain, dk_gain, q_statistics, k_statistics,  # pointers or None
    first_head, num_heads, H, group, row_tiles, num_rows, num_columns,  # heads are the rows'
    scale, bias_number, alpha, lift_w, lift_ds, tail_w, tail_ds,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    LIFTS: gl.constexpr, POWER: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    SIGNED: gl.constexpr, Q_NORM: gl.constexpr, K_NORM: gl.constexpr, D: gl.constexpr,
    NUM_CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PIECE: gl.constexpr, LAST_PIECE: gl.constexpr, DEGREE: gl.constexpr, SCHEDULE: gl.constexpr,
):
    """dq, or dk and dv, or all: sums of lift_ds dS and lift_w W times tails; any grid.

    Of all samples' heads, num_heads from first_head on; words are those of these alone. With norms
    q and k are q-hat and k-hat, dq and dk those of q_raw and k_raw, and each consumer of a program
    leaves its share in a row of dq_gain and dk_gain.
    """
    NUM_SLOTS: gl.constexpr = SLOTS * NUM_CONSUMERS
    HAS_KEYS: gl.constexpr = SIDE != "queries"
    HAS_QUERIES: gl.constexpr = SIDE != "keys"
    rows = v_rows if HAS_KEYS else do_rows  # all rows have one type, and all columns
    columns = q if HAS_KEYS else k
    a_buffers = make_buffers(rows, NUM_SLOTS)
    b_buffers = a_buffers
    if HAS_KEYS or not SIGNED:
        b_buffers = make_buffers(rows, NUM_SLOTS)
    x_buffers = a_buffers
    if (HAS_KEYS and K_NORM != "none") or (HAS_QUERIES and Q_NORM != "none"):
        x_buffers = make_buffers(rows, NUM_SLOTS)
    c_buffers, d_buffers = make_buffers(columns, STAGES), make_buffers(columns, STAGES)
    rows_full, rows_empty = make_barriers(NUM_SLOTS, 1), make_barriers(NUM_SLOTS, 1)
    c_full, d_full = make_barriers(STAGES, 1), make_barriers(STAGES, 1)
    empty = make_barriers(STAGES, NUM_CONSUMERS)
    turns = empty
    if SCHEDULE == "relay":
        turns = make_barriers(NUM_CONSUMERS, 1)
        mbarrier.arrive(turns.index(0), count=1)
    fence_async_shared()

    k_shares = x_buffers
    if dk_gain is not None:
        k_shares = make_shares(NUM_CONSUMERS, rows.block_shape[2], rows.block_shape[3])
    q_shares = x_buffers
    if dq_gain is not None:
        q_shares = make_shares(NUM_CONSUMERS, rows.block_shape[2], rows.block_shape[3])
    k_norm = Norm(
        KIND=K_NORM, x=k_raw, buffers=x_buffers, gain=k_gain, dgain=dk_gain, shares=k_shares,
        statistics=k_statistics,
    )
    q_norm = Norm(
        KIND=Q_NORM, x=q_raw, buffers=x_buffers, gain=q_gain, dgain=dq_gain, shares=q_shares,
        statistics=q_statistics,
    )
    queries = Side(
        SIDE="queries", a=do_rows if SIGNED else q_rows, b=do_rows, c=v if SIGNED else k,
        d=k if SIGNED else v, da=dq, db=dq, norm=q_norm,
    )
    program = Program(
        keys=Side(SIDE="keys", a=k_rows, b=v_rows, c=q, d=do, da=dk, db=dv, norm=k_norm),
        queries=queries,
        rows=Rows(a_buffers=a_buffers, b_buffers=b_buffers, full=rows_full, empty=rows_empty),
        columns=Columns(
            c_buffers=c_buffers, d_buffers=d_buffers, c_full=c_full, d_full=d_full, empty=empty
        ),
        turns=turns, words=words, offsets=offsets,
        sizes=Sizes(
            first_head=first_head, num_heads=num_heads, H=H, group=group, row_tiles=row_tiles,
            num_rows=num_rows, num_columns=num_columns,
        ),
        numbers=Numbers(
            scale=scale, bias_number=bias_number, alpha=alpha, lift_w=lift_w, lift_ds=lift_ds,
            tail_w=tail_w, tail_ds=tail_ds,
        ),
        options=Options(
            WEIGH=WEIGH, GRADIENT=GRADIENT, FINISHES=FINISHES, IS_RELU=IS_RELU, LIFTS=LIFTS,
            POWER=POWER, CAUSAL=CAUSAL, LAUNCH=SIDE, SIGNED=SIGNED, DEGREE=DEGREE, D=D,
            SCHEDULE=SCHEDULE,
            PIECE=PIECE, LAST_PIECE=LAST_PIECE,
        ),
    )
    gl.warp_specialize(
        [(work, (program, warpgroup)) for warpgroup in (0, 1, 2, 3, 4)[:NUM_CONSUMERS + 1]],
        [4] * (NUM_CONSUMERS - 1) + [1],
        [CONSUMER_REGISTERS] * (NUM_CONSUMERS - 1) + [24],
    )


ROWS = 64  # of a warpgroup


class Config(NamedTuple):
    """How the kernel divides its work.

    Attributes:
        block: columns per step.
        stages: length of their rings.
        consumers: warpgroups; a tile has ROWS * consumers rows.
        schedule: "relay" has them start products in turn, "free" when they can.
    """

    block: int
    stages: int
    consumers: int = 2
    schedule: str = "free"


# by side, BLOCK_D and causality, measured on an H200: docs/log.md
CONFIGS = {
    ("keys", 64, False): Config(128, 2),
    ("keys", 64, True): Config(64, 4),
    ("keys", 128, False): Config(64, 2),
    ("keys", 128, True): Config(64, 2),
    ("queries", 64, False): Config(128, 2),
    ("queries", 64, True): Config(128, 2),
    ("queries", 128, False): Config(64, 2),
    ("queries", 128, True): Config(64, 2),
}
# the same for powers of relu that see all keys, by BLOCK_D, on both sides
POWERS = {64: Config(128, 2), 128: Config(64, 2, schedule="relay")}
# the same where SIGNED, and by that where signs pay; blocks of 64 queries on the keys side
SIGNED_CONFIGS = {
    ("keys", 128, False): Config(64, 2),
    ("keys", 128, True): Config(64, 2),
    ("queries", 128, False): Config(128, 2),
    ("queries", 128, True): Config(128, 2),
}
# the same, by BLOCK_D and whether h is relu without sums, of both sides in one launch: relu or a
# power of it, as many queries as keys, all seen
BOTH_CONFIGS = {(64, True): Config(128, 2), (64, False): Config(64, 4)}
BOTH_ROWS = 1024  # queries and keys up to which a head's should stay in the cache; timed up to 784
SIGNED_ROWS = {False: 1, True: 2048}  # queries and keys from which on they pay, by causality
TENSORS = (  # of the kernel, None where a side has no such
    "q", "k", "v", "do", "q_rows", "k_rows", "v_rows", "do_rows", "dq", "dk", "dv",
    "q_raw", "k_raw", "dq_gain", "dk_gain", "q_statistics", "k_statistics",
)
NORMED = {"keys": ("k",), "queries": ("q",), "both": ("k", "q")}  # rows that may have a norm
SHORTEST = 16  # columns of a piece of a block
MOST_WORDS = 2**24  # of signs at a time: 64 MB


def launch_backward(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], layout: Layout,
) -> dict[Role, Tensor]:
    """Write dq, dk and dv to grads; gives shares of the gains' gradients, if any.

    With norms the call is that of q-hat and k-hat, and the arguments hold the norms, their
    statistics, and q and k before them as "q_raw" and "k_raw".
    """
    gain, scale = arguments["gain"], arguments["scale"]
    degree = DEGREES.get(call.terms.activation, 0)
    slope = scale * max(degree, 1)
    if call.has_sums:  # do is times its factors already
        gain, arguments = 1.0, arguments | {"POWER": "none", "alpha": None}

    def with_lifts(lift_w: float, lift_ds: float) -> dict[str, Any]:
        tails = {"tail_w": gain / lift_w, "tail_ds": slope * gain / lift_ds, "DEGREE": degree}
        return arguments | tails | {"lift_w": lift_w, "lift_ds": lift_ds}

    of_queries = of_keys = with_lifts(arguments["shrink"], arguments["shrink_ds"])
    if arguments["POWER"] != "none" and arguments["SHRINKS"]:
        moved = 2.0 ** call.moved_exponent()[0]  # still to come, with the gain
        of_keys = with_lifts(*(moved * lift for lift in call.row_shrinks()))
    processors = torch.cuda.get_device_properties(do.device).multi_processor_count
    heads = call.num_samples * call.k.shape[1]
    per_launch = count_signed_heads(call, processors)
    words = None
    if per_launch:
        size = per_launch * call.group * count_words(call.num_queries, call.num_keys)
        words = recorder.empty(Role.WORDS, [size], torch.int32)
    shares: dict[Role, Tensor] = {}
    for first in range(0, heads, per_launch or heads):
        some = range(first, min(first + (per_launch or heads), heads))
        rest = (words, processors, call, recorder, do, grads)
        if joins_sides(call):
            shares |= _launch_side("both", some, *rest, of_keys)
        else:
            shares |= _launch_side("keys", some, *rest, of_keys)
            shares |= _launch_side("queries", some, *rest, of_queries)
    return shares


def joins_sides(call: Call) -> bool:
    """True where one launch makes dq, dk and dv, the tiles of a head one behind the other."""
    terms, size = call.terms, call.num_queries
    is_plain = terms.activation in DEGREES and terms.right is None and call.group == 1
    fits = call.num_keys == size <= BOTH_ROWS
    return is_plain and fits and (block_of(call.q.shape[3]), True) in BOTH_CONFIGS


def count_signed_heads(call: Call, processors: int) -> int:
    """Key heads per launch that store signs, or 0: then dq makes its scores again."""
    sizes = (call.num_queries, call.num_keys)
    causal = call.terms.right is not None
    pays = ("queries", block_of(call.q.shape[3]), causal) in SIGNED_CONFIGS
    pays = pays and min(sizes) >= SIGNED_ROWS[causal]
    most = MOST_WORDS // (call.group * count_words(*sizes))
    if call.terms.activation != "relu" or call.has_sums or not (pays and most):
        return 0
    work = Work(call.num_samples * call.k.shape[1], call.group, *sizes, processors)
    per_launch = work.split(most)
    return per_launch if work.gains_by(per_launch) else 0


def pieces_of(columns: int, block: int) -> tuple[int, int]:
    """The last block's columns as one or two powers of two from 16 on; 0, 0 if it is as others."""
    rest = -(-(columns % block) // SHORTEST) * SHORTEST
    piece = 1 << rest.bit_length() - 1 if rest else 0
    last = rest - piece
    if last & (last - 1):  # three pieces cost as much as a block
        return 0, 0
    return (piece, last) if piece < block else (0, 0)


def _choose_config(side: str, call: Call, signed: bool, has_norm: bool) -> Config:
    dim, is_relu = block_of(call.q.shape[3]), call.terms.activation == "relu"
    causal = call.terms.right is not None
    if side == "both":
        return BOTH_CONFIGS[dim, is_relu and not call.has_sums]
    if call.terms.activation in DEGREES and not (is_relu or has_norm or causal):
        return POWERS[dim]
    # others than relu need more registers: they take the smaller of two blocks
    return (SIGNED_CONFIGS if signed else CONFIGS)[side, dim, causal or not is_relu]


def _launch_side(
    side: str, heads: range, words: Tensor | None, processors: int,
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> dict[Role, Tensor]:
    """One kernel for some key heads of all samples', for the query heads that share them, or both.

    Gives shares of the gains' gradients.
    """
    causal, signed = call.terms.right is not None, words is not None
    is_relu = call.terms.activation == "relu"
    dim = call.q.shape[3]
    has_norm = any(arguments[f"{name.upper()}_NORM"] != "none" for name in NORMED[side])
    config = _choose_config(side, call, signed, has_norm)
    block, consumers = config.block, config.consumers
    of_queries = side == "queries"
    rows, columns = (call.q, call.k) if of_queries else (call.k, call.q)
    members = call.group if of_queries else 1
    is_whole = causal or signed
    piece, last_piece = (0, 0) if is_whole else pieces_of(columns.shape[2], block)
    row_tiles = -(-rows.shape[2] // (ROWS * consumers))
    programs = min(row_tiles * len(heads) * members, processors)
    tensors = _describe_side(side, signed, call, do, grads, arguments, block)
    shares: dict[Role, Tensor] = {}
    for name in NORMED[side]:
        if arguments[f"{name}_gain"] is not None:
            role, shape = Role(f"d{name}_gain"), (programs * consumers, dim)
            shares[role] = recorder.empty(role, shape, torch.float32)
    nothing = dict.fromkeys(TENSORS)
    recorder.launch(
        hopper_backward_kernel, programs,
        only(hopper_backward_kernel, arguments) | nothing | tensors | shares | {
            "words": words, "first_head": heads.start * members, "num_heads": len(heads) * members,
            "H": rows.shape[1], "group": call.group, "row_tiles": row_tiles,
            "num_rows": rows.shape[2], "num_columns": columns.shape[2],
            "FINISHES": arguments["HAS_SCALE"] or arguments["HAS_BIAS_NUMBER"],
            "IS_RELU": is_relu, "LIFTS": arguments["SHRINKS"],
            "CAUSAL": causal, "SIDE": side, "SIGNED": signed,
            "NUM_CONSUMERS": consumers, "STAGES": config.stages, "SCHEDULE": config.schedule,
            "PIECE": piece, "LAST_PIECE": last_piece,
            "CONSUMER_REGISTERS": REGISTERS[consumers], "num_warps": 4,
        }, call.backward_roles(Role.G if call.has_sums else Role.DO))
    return shares


def _describe_side(
    side: str, signed: bool, call: Call, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], block: int,
) -> dict[str, Any]:
    """What the kernel streams, keeps and stores, and statistics of rows with a norm."""
    has_keys, has_queries = side != "queries", side != "keys"
    named = {"q": call.q, "k": call.k, "v": call.v, "do": do}
    named |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    in_rows = ["k", "v"] * has_keys + ["q", "do"] * has_queries
    in_columns = ["q", "do"] * has_keys + ["k", "v"] * has_queries
    if signed and not has_keys:
        in_rows.remove("q")
    stored = ["dk", "dv"] * has_keys + ["dq"] * has_queries
    tensors = {name: describe(named[name], block) for name in in_columns}
    tensors |= {f"{name}_rows": describe(named[name], ROWS) for name in in_rows}
    tensors |= {name: describe(named[name], ROWS) for name in stored}
    for name in NORMED[side]:
        if arguments[f"{name.upper()}_NORM"] != "none":
            tensors[f"{name}_raw"] = describe(arguments[f"{name}_raw"], ROWS)
            tensors[f"{name}_statistics"] = arguments[f"{name}_statistics"]
    return tensors
