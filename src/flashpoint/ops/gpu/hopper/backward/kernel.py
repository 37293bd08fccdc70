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

SPLIT, for relu in head dims over 128, whose dk and dv do not fit registers together: the keys side
is two launches, of two products each, and a program keeps one block of rows:

    SIDE values   a = k,          c = q, d = do,  da = dv     S = a c^T, da += W d, stores signs
    SIDE keys     a = v,          c = do, d = q,  da = dk     dW = a c^T, da += dS d, by signs

Barriers are those of ``hopper/tiles.py``; c and d are full by themselves and empty together. The
producer's order is rows, c_0, d_0, c_1, d_1, ... No circle of waits: a consumer that waits for c_t
or d_t has released all before them, but for c_{t-1} and d_{t-1} where it lags, which takes two
STAGES. Rows have two slots per warpgroup, the same two barriers with one arrival each, and the
tile's number in place of t. Gradients leave through their rows' slots, which are released at the
start of the next tile, once the stores have read them. Where shared memory holds one slot per
warpgroup (SLOTS), it is released at the end of its tile, as soon as the store has read it: before
the warpgroup waits for rows again, so that no circle closes. With a norm the rows before it, x,
are loaded too, to slots of their own, and da is taken back through the norm on its way out
(``hopper/qk_norm.py``), by the means and r that came with x-hat. What tiles add to dgain is summed
in shared memory: registers are full of accumulators.

Causal tiles start at the diagonal, so that their first loop, over masked blocks, runs at least
once and the compiler knows it. That is not for speed: where the first of two loops may run zero
times, ptxas 12.8 reuses what it computed ahead of it (descriptors of a and b) in the second one.
SIGNED queries have one loop. SIDE both has one per tile: a warpgroup with rows has a whole block
of columns for each, and one without rows meets neither.
"""

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

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
from flashpoint.ops.gpu.hopper.backward.configs import (
    BOTH_CONFIGS,
    ROWS,
    SIGNED_CONFIGS,
    SPLIT_ROOMS,
    SPLIT_SIDES,
    choose_config,
    pieces_of,
)
from flashpoint.ops.gpu.hopper.backward.consumer import consume
from flashpoint.ops.gpu.hopper.backward.once import adds_in_place, launch_one_pass, passes_once
from flashpoint.ops.gpu.hopper.backward.producer import produce
from flashpoint.ops.gpu.hopper.qk_norm import make_shares
from flashpoint.ops.gpu.hopper.sigmoids import BOTH, SLOPES, take_log2
from flashpoint.ops.gpu.hopper.tiles import (
    REGISTERS,
    describe,
    make_barriers,
    make_buffers,
)
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.reading import room_of, split_dim
from flashpoint.ops.gpu.replay import Recorder, Role, only
from flashpoint.ops.gpu.sections import CausalWork, size_section
from flashpoint.ops.gpu.sign_budget import Work, count_heads, count_words


@gluon.jit
def work(program, WARPGROUP: gl.constexpr):
    """Consumers are warpgroups 0 to NUM_CONSUMERS - 1, the producer is the one after them."""
    NUM_CONSUMERS: gl.constexpr = program.rows.full.shape[0] // program.options.SLOTS
    if WARPGROUP < NUM_CONSUMERS:
        consume(program, WARPGROUP)
    else:
        produce(program)


@gluon.jit(do_not_specialize=[
    "first_head", "num_heads", "section", "H", "group", "row_tiles", "num_rows", "num_columns",
])
def hopper_backward_kernel(
    q, k, v, do, q_rows, k_rows, v_rows, do_rows,  # descriptors of columns and of rows, and of
    dq, dk, dv, q_raw, k_raw,                      # rows again; those of other sides None
    words, offsets,                                # pointers to signs and to e_i, or None
    q_gain, k_gain, dq_gain, dk_gain, q_statistics, k_statistics,  # pointers or None
    first_head, num_heads, section,                   # heads are the rows'; section: or None
    H, group, row_tiles, num_rows, num_columns,
    scale, bias_number, alpha, lift_w, lift_ds, tail_w, tail_ds,
    WEIGH: gl.constexpr, GRADIENT: gl.constexpr, FINISHES: gl.constexpr, IS_RELU: gl.constexpr,
    SLOPED: gl.constexpr,
    LIFTS: gl.constexpr, POWER: gl.constexpr, CAUSAL: gl.constexpr, SIDE: gl.constexpr,
    SIGNED: gl.constexpr, Q_NORM: gl.constexpr, K_NORM: gl.constexpr, D: gl.constexpr,
    NUM_CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PIECE: gl.constexpr, LAST_PIECE: gl.constexpr, DEGREE: gl.constexpr, LAGS: gl.constexpr,
    SPLIT: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, IN_REGISTERS: gl.constexpr,
):
    """dq, dk and dv, or some of them: sums of lift_ds dS and lift_w W times tails; any grid.

    Of all samples' heads, num_heads from first_head on; words are those of these alone. With norms
    q and k are q-hat and k-hat, dq and dk those of q_raw and k_raw, and each consumer of a program
    leaves its share in a row of dq_gain and dk_gain.
    """
    NUM_SLOTS: gl.constexpr = SLOTS * NUM_CONSUMERS
    HAS_KEYS: gl.constexpr = SIDE != "queries"
    HAS_QUERIES: gl.constexpr = SIDE == "queries" or SIDE == "both"
    OF_VALUES: gl.constexpr = SIDE == "values"
    KEYS_FROM: gl.constexpr = "scores" if OF_VALUES else "signs" if SPLIT else "both"
    QUERIES_FROM: gl.constexpr = "signs" if SIGNED else "both"
    rows = v_rows if HAS_KEYS else do_rows  # all rows have one type, and all columns
    if OF_VALUES:
        rows = k_rows
    columns = q if HAS_KEYS else k
    a_buffers = make_buffers(rows, NUM_SLOTS * PIECES)
    b_buffers = a_buffers
    if (KEYS_FROM if HAS_KEYS else QUERIES_FROM) == "both":
        b_buffers = make_buffers(rows, NUM_SLOTS * PIECES)
    x_buffers = a_buffers
    if (HAS_KEYS and K_NORM != "none") or (HAS_QUERIES and Q_NORM != "none"):
        x_buffers = make_buffers(rows, NUM_SLOTS)
    c_buffers = make_buffers(columns, STAGES * PIECES)
    d_buffers = make_buffers(columns, STAGES * PIECES)
    rows_full, rows_empty = make_barriers(NUM_SLOTS, 1), make_barriers(NUM_SLOTS, 1)
    c_full, d_full = make_barriers(STAGES, 1), make_barriers(STAGES, 1)
    empty = make_barriers(STAGES, NUM_CONSUMERS)
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
        SIDE="queries", FROM=QUERIES_FROM, a=do_rows if SIGNED else q_rows, b=do_rows,
        c=v if SIGNED else k, d=k if SIGNED else v, da=dq, db=dq, norm=q_norm,
    )
    keys = Side(
        SIDE="keys", FROM=KEYS_FROM, a=v_rows if KEYS_FROM == "signs" else k_rows, b=v_rows,
        c=do if KEYS_FROM == "signs" else q, d=q if KEYS_FROM == "signs" else do,
        da=dv if OF_VALUES else dk, db=dv, norm=k_norm,
    )
    program = Program(
        keys=keys, queries=queries,
        rows=Rows(a_buffers=a_buffers, b_buffers=b_buffers, full=rows_full, empty=rows_empty),
        columns=Columns(
            c_buffers=c_buffers, d_buffers=d_buffers, c_full=c_full, d_full=d_full, empty=empty
        ),
        words=words, offsets=offsets,
        sizes=Sizes(
            first_head=first_head, num_heads=num_heads, section=section, H=H, group=group,
            row_tiles=row_tiles, num_rows=num_rows, num_columns=num_columns,
        ),
        numbers=Numbers(
            scale=scale, bias_number=bias_number, alpha=alpha, lift_w=lift_w, lift_ds=lift_ds,
            tail_w=tail_w, tail_ds=tail_ds,
        ),
        options=Options(
            WEIGH=WEIGH, GRADIENT=GRADIENT, FINISHES=FINISHES, IS_RELU=IS_RELU, SLOPED=SLOPED,
            LIFTS=LIFTS, POWER=POWER, CAUSAL=CAUSAL, LAUNCH="keys" if OF_VALUES else SIDE,
            SIGNED=SIGNED, DEGREE=DEGREE, LAGS=LAGS, D=D, PIECES=PIECES,
            SLOTS=SLOTS, IN_REGISTERS=IN_REGISTERS, PIECE=PIECE, LAST_PIECE=LAST_PIECE,
        ),
    )
    gl.warp_specialize(
        [(work, (program, warpgroup)) for warpgroup in (0, 1, 2, 3, 4)[:NUM_CONSUMERS + 1]],
        [4] * (NUM_CONSUMERS - 1) + [1],
        [CONSUMER_REGISTERS] * (NUM_CONSUMERS - 1) + [24],
    )


BOTH_ROWS = 1024  # queries and keys up to which a head's should stay in the cache; timed up to 784
SIGNED_ROWS = {False: 1, True: 2048}  # queries and keys from which on they pay, by causality
TENSORS = (  # of the kernel, None where a side has no such
    "q", "k", "v", "do", "q_rows", "k_rows", "v_rows", "do_rows", "dq", "dk", "dv",
    "q_raw", "k_raw", "dq_gain", "dk_gain", "q_statistics", "k_statistics",
)
# rows that may have a norm
NORMED = {"keys": ("k",), "queries": ("q",), "both": ("k", "q"), "values": ()}


def launch_backward(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], layout: Layout,
) -> dict[Role, Tensor]:
    """Write dq, dk and dv to grads; gives shares of the gains' gradients, if any, by role.

    Totals of the call are among what it gives where dq was added to these instead.

    With norms the call is that of q-hat and k-hat, and the arguments hold the norms, their
    statistics, and q and k before them as "q_raw" and "k_raw".
    """
    gain, activation = arguments["gain"], call.terms.activation
    degree = DEGREES.get(activation, 0)
    slope = arguments["scale"] * max(degree, 1)
    if activation in BOTH:
        pair = {"WEIGH": BOTH[activation], "GRADIENT": SLOPES[activation]}
        arguments = arguments | take_log2(arguments) | pair
    if call.has_sums:  # do is times its factors already
        gain, arguments = 1.0, arguments | {"POWER": "none", "alpha": None}

    def with_lifts(lift_w: float, lift_ds: float) -> dict[str, Any]:
        tails = {"tail_w": gain / lift_w, "tail_ds": slope * gain / lift_ds, "DEGREE": degree}
        return arguments | tails | {"lift_w": lift_w, "lift_ds": lift_ds}

    of_queries = of_keys = with_lifts(arguments["shrink"], arguments["shrink_ds"])
    if arguments["POWER"] != "none" and arguments["SHRINKS"]:
        moved = 2.0 ** call.moved_exponent()[0]  # still to come, with the gain
        of_keys = with_lifts(*(moved * lift for lift in call.row_shrinks()))
    gpu = torch.cuda.get_device_properties(do.device)
    if passes_once(call, arguments) and not joins_sides(call):
        launch_one_pass(call, recorder, do, grads, of_keys)
        return {Role.TOTALS: call.totals} if adds_in_place(call) else {}
    heads = call.num_samples * call.k.shape[1]
    per_launch = count_signed_heads(call, gpu.multi_processor_count)
    words = None
    if per_launch:
        size = per_launch * call.group * count_words(call.num_queries, call.num_keys)
        words = recorder.empty(Role.WORDS, [size], torch.int32)
    shares: dict[Role, Tensor] = {}
    for first in range(0, heads, per_launch or heads):
        some = range(first, min(first + (per_launch or heads), heads))
        rest = (words, gpu, call, recorder, do, grads)
        for side in sides_of(call):
            of_side = of_queries if side == "queries" else of_keys
            shares |= _launch_side(side, some, *rest, of_side)
    return shares


def sides_of(call: Call) -> tuple[str, ...]:
    """Those of its launches, in order."""
    if is_split(call):
        return SPLIT_SIDES
    return ("both",) if joins_sides(call) else ("keys", "queries")


def is_split(call: Call) -> bool:
    """True where dv, dk and dq have a launch each."""
    return room_of(call.q.shape[3]) in SPLIT_ROOMS


def joins_sides(call: Call) -> bool:
    """True where one launch makes dq, dk and dv, the tiles of a head one behind the other."""
    terms, size = call.terms, call.num_queries
    is_plain = terms.activation in DEGREES and terms.right is None and call.group == 1
    fits = call.num_keys == size <= BOTH_ROWS
    return is_plain and fits and (room_of(call.q.shape[3]), True) in BOTH_CONFIGS


def count_signed_heads(call: Call, processors: int) -> int:
    """Key heads per launch that store signs, or 0: then dq makes its scores again."""
    sizes = (call.num_queries, call.num_keys)
    causal = call.terms.right is not None
    pays = ("queries", room_of(call.q.shape[3]), causal) in SIGNED_CONFIGS
    pays = is_split(call) or (pays and min(sizes) >= SIGNED_ROWS[causal])
    most = count_heads(call.group, *sizes)
    if call.terms.activation != "relu" or call.has_sums or not (pays and most):
        return 0
    work = Work(call.num_samples * call.k.shape[1], call.group, *sizes, processors)
    per_launch = work.split(most)
    if is_split(call):
        return per_launch
    return per_launch if work.gains_by(per_launch) else 0


def _launch_side(
    side: str, heads: range, words: Tensor | None, gpu: Any,
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
    config = choose_config(side, call, signed, has_norm)
    block, consumers = config.block, config.consumers
    of_queries = side == "queries"
    rows, columns = (call.q, call.k) if of_queries else (call.k, call.q)
    members = call.group if of_queries else 1
    is_whole = causal or signed
    piece, last_piece = (0, 0) if is_whole else pieces_of(columns.shape[2], block)
    row_tiles = -(-rows.shape[2] // (ROWS * consumers))
    programs = min(row_tiles * len(heads) * members, gpu.multi_processor_count)
    section = None
    if causal:
        work = _describe_work(side, signed, call, len(heads), row_tiles, ROWS * consumers)
        section = size_section(work, gpu.multi_processor_count, gpu.L2_cache_size)
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
            "section": section, "H": rows.shape[1], "group": call.group, "row_tiles": row_tiles,
            "num_rows": rows.shape[2], "num_columns": columns.shape[2],
            "FINISHES": arguments["HAS_SCALE"] or arguments["HAS_BIAS_NUMBER"],
            "IS_RELU": is_relu, "SLOPED": call.terms.activation in BOTH,
            "LIFTS": arguments["SHRINKS"],
            "CAUSAL": causal, "SIDE": side, "SIGNED": signed,
            "NUM_CONSUMERS": consumers, "STAGES": config.stages,
            "LAGS": config.lags, "PIECE": piece, "LAST_PIECE": last_piece,
            "SPLIT": is_split(call), "PIECES": split_dim(dim)[1], "SLOTS": config.slots,
            "IN_REGISTERS": config.in_registers,
            "CONSUMER_REGISTERS": REGISTERS[consumers], "num_warps": 4,
        }, call.backward_roles(Role.G if call.has_sums else Role.DO))
    return shares


def _describe_work(
    side: str, signed: bool, call: Call, heads: int, row_tiles: int, rows: int
) -> CausalWork:
    """What a causal launch of one side has to do for some key heads."""
    row_bytes = (call.q.shape[3] + call.v.shape[3]) * call.q.itemsize
    products = 2 if is_split(call) else 4
    keys, queries = call.num_keys, call.num_queries
    if side != "queries":
        slack, head_bytes = keys - queries, call.group * queries * row_bytes
        return CausalWork(heads, 1, row_tiles, rows, queries, slack, head_bytes, products)
    products = 2 if signed else 3
    heads *= call.group
    return CausalWork(heads, call.group, row_tiles, rows, keys, 0, keys * row_bytes, products)


def _describe_side(
    side: str, signed: bool, call: Call, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], block: int,
) -> dict[str, Any]:
    """What the kernel streams, keeps and stores, and statistics of rows with a norm."""
    has_keys, has_queries = side != "queries", side in ("queries", "both")
    named = {"q": call.q, "k": call.k, "v": call.v, "do": do}
    named |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    in_rows = ["k", "v"] * has_keys + ["q", "do"] * has_queries
    in_columns = ["q", "do"] * has_keys + ["k", "v"] * has_queries
    stored = ["dk", "dv"] * has_keys + ["dq"] * has_queries
    if signed and not has_keys:
        in_rows.remove("q")
    if is_split(call) and has_keys:
        in_rows, stored = (["k"], ["dv"]) if side == "values" else (["v"], ["dk"])
    tensors = {name: describe(named[name], block) for name in in_columns}
    tensors |= {f"{name}_rows": describe(named[name], ROWS) for name in in_rows}
    tensors |= {name: describe(named[name], ROWS) for name in stored}
    for name in NORMED[side]:
        if arguments[f"{name.upper()}_NORM"] != "none":
            tensors[f"{name}_raw"] = describe(arguments[f"{name}_raw"], ROWS)
            tensors[f"{name}_statistics"] = arguments[f"{name}_statistics"]
    return tensors
