"""Forward for Hopper (sm_90a) in Gluon: the copy engine, asynchronous products, warps with roles.

One producer warp loads Q, K and V; NUM_CONSUMERS warpgroups own ROWS queries each:

    S = Q K^T  (wgmma)  ->  W = h(S), in registers  ->  O += W V  (wgmma, W its register operand)

Barriers are those of ``hopper/tiles.py``. No circle of waits: the producer's order is Q, K_0, V_0,
K_1, V_1, ... A consumer that waits for K_t has released all V before V_{t-1} and all K before K_t;
one that waits for V_{t-1} has released all V before it and all K before K_t. What it waits for
stands in the producer's order behind blocks that need only those released slots, for every STAGES
>= 1. By schedule "deep" one that waits for K_t still holds V_{t-2}, which takes two STAGES. Q has
one slot per warpgroup, the same two barriers with one arrival each, and the tile's number in place
of t. By schedule "turns" there is one more set (``blocks.py``).

O_BY_Q, where shared memory is full: O leaves by the slot of Q. A warpgroup writes O there when its
own last product is done, since no other reads that slot, waits until the copy engine has read it,
and only then gives it back. It waits for nothing else before, and Q of the next tile stands behind
all K and V of this one in the producer's order: no circle of waits either. The next Q is not there
ahead of its tile; the other warpgroup's products fill the gap.

Totals are fp32 sums that O is added to (ADDS). O leaves as fp32 by shared memory of its own, and
the copy engine adds it while the next tile is computed. A launch adds to each number once, so that
bits are the same every time. Where D is over 128, which leaves no room for that, or where the copy
engine cannot reach totals, o is None: registers load them, add and store.

relu(r s) = r relu(s): r of a query's norm then multiplies its row of O instead (ROOTS_LAST), and
is computed while the first product runs; likewise r ** p of relu ** p. The gain of q goes with
K's, where K has a norm.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from flashpoint.ops.gpu.activations import DEGREES
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.hopper.forward.arguments import (
    Norms,
    Numbers,
    Options,
    Program,
    Sizes,
    Totals,
)
from flashpoint.ops.gpu.hopper.forward.consumer import consume
from flashpoint.ops.gpu.hopper.forward.producer import normalize_keys, produce
from flashpoint.ops.gpu.hopper.forward.weights import form_of
from flashpoint.ops.gpu.hopper.tiles import (
    NORM_REGISTERS,
    REGISTERS,
    REGISTERS_NORMED,
    Ring,
    describe,
    describe_sums,
    make_barriers,
    make_buffers,
)
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.reading import is_regular, room_of, split_dim
from flashpoint.ops.gpu.replay import Recorder, Role, only
from flashpoint.ops.gpu.sections import CausalWork, size_section


@gluon.jit
def work(program, WARPGROUP: gl.constexpr):
    """Consumers are warpgroups 0 to NUM_CONSUMERS - 1; after them who normalizes, if K has a norm.

    The producer is the last.
    """
    NUM_CONSUMERS: gl.constexpr = program.queries.full.shape[0]
    HAS_NORM: gl.constexpr = program.options.K_NORM != "none"
    if WARPGROUP < NUM_CONSUMERS:
        consume(for_consumers(program), WARPGROUP)
    elif WARPGROUP == NUM_CONSUMERS and HAS_NORM:
        normalize_keys(program)
    else:
        produce(program)


@gluon.jit
def for_consumers(program):
    """The same with K full where it is normalized, and the gain of q left out where K has it."""
    norms, keys = program.norms, program.keys
    if program.options.ROOTS_LAST and program.options.K_NORM != "none":
        norms = Norms(q_gain=None, k_gain=norms.k_gain, q_eps=norms.q_eps, k_eps=norms.k_eps)
    return Program(
        q=program.q, k=program.k, v=program.v, o=program.o, sums=program.sums,
        totals=program.totals, queries=program.queries,
        keys=Ring(buffers=keys.buffers, full=program.k_ready, empty=keys.empty),
        values=program.values, o_buffers=program.o_buffers, k_ready=program.k_ready,
        turns=program.turns, sizes=program.sizes, norms=norms, numbers=program.numbers,
        options=program.options,
    )


@gluon.jit(do_not_specialize=["B", "Hq", "group", "section", "row_tiles", "Lq", "Lk"])
def hopper_forward_kernel(
    q, k, v, o,                       # descriptors, blocks [1, 1, rows, columns of a piece of D]
    sums, totals, q_gain, k_gain,                  # pointers or None
    total_batch, total_head, total_row,            # strides of totals
    B, Hq, group, section, row_tiles, Lq, Lk,         # section: or None
    q_eps, k_eps, gain, alpha, scale, bias_number, shrink, moved,
    WEIGH: gl.constexpr, HAS_SCALE: gl.constexpr, HAS_BIAS_NUMBER: gl.constexpr,
    SHRINKS: gl.constexpr, FORM: gl.constexpr, CAUSAL: gl.constexpr, POWER: gl.constexpr,
    NUM_CONSUMERS: gl.constexpr, STAGES: gl.constexpr, SCHEDULE: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    Q_NORM: gl.constexpr, K_NORM: gl.constexpr, ROOTS_LAST: gl.constexpr, D: gl.constexpr,
    DV: gl.constexpr,
    PIECE: gl.constexpr, BY_SUM: gl.constexpr, DEGREE: gl.constexpr, PIECES: gl.constexpr,
    O_BY_Q: gl.constexpr, ADDS: gl.constexpr,
):
    """o_i = gain * n_i ** -alpha * sum_j h(scale * q_i . k_j + b) v_j, and sums; for any grid.

    BY_SUM: divided as the portable kernel does it. ADDS: added to what is there. With totals, o is
    None, and these are it.
    """
    q_buffers = make_buffers(q, NUM_CONSUMERS * PIECES)
    o_buffers = q_buffers
    if not O_BY_Q and totals is None:
        o_buffers = make_buffers(o, NUM_CONSUMERS * PIECES)
    k_buffers, v_buffers = make_buffers(k, STAGES * PIECES), make_buffers(v, STAGES * PIECES)
    q_full, q_empty = make_barriers(NUM_CONSUMERS, 1), make_barriers(NUM_CONSUMERS, 1)
    k_full, k_empty = make_barriers(STAGES, 1), make_barriers(STAGES, NUM_CONSUMERS)
    v_full, v_empty = make_barriers(STAGES, 1), make_barriers(STAGES, NUM_CONSUMERS)
    k_ready = k_full
    if K_NORM != "none":
        k_ready = make_barriers(STAGES, 1)
    turns = q_full
    if SCHEDULE == "turns" or SCHEDULE == "relay":
        turns = make_barriers(NUM_CONSUMERS, 1)
        mbarrier.arrive(turns.index(0), count=1)
    fence_async_shared()

    program = Program(
        q=q, k=k, v=v, o=o, sums=sums,
        totals=Totals(pointer=totals, batch=total_batch, head=total_head, row=total_row),
        queries=Ring(buffers=q_buffers, full=q_full, empty=q_empty),
        keys=Ring(buffers=k_buffers, full=k_full, empty=k_empty),
        values=Ring(buffers=v_buffers, full=v_full, empty=v_empty),
        o_buffers=o_buffers, k_ready=k_ready, turns=turns,
        sizes=Sizes(B=B, H=Hq, group=group, section=section, row_tiles=row_tiles, Lq=Lq, Lk=Lk),
        norms=Norms(q_gain=q_gain, k_gain=k_gain, q_eps=q_eps, k_eps=k_eps),
        numbers=Numbers(
            gain=gain, alpha=alpha, scale=scale, bias_number=bias_number, shrink=shrink,
            moved=moved,
        ),
        options=Options(
            WEIGH=WEIGH, HAS_SCALE=HAS_SCALE, HAS_BIAS_NUMBER=HAS_BIAS_NUMBER, SHRINKS=SHRINKS,
            FORM=FORM, CAUSAL=CAUSAL, POWER=POWER, Q_NORM=Q_NORM, K_NORM=K_NORM,
            ROOTS_LAST=ROOTS_LAST, DEGREE=DEGREE, D=D, DV=DV, PIECES=PIECES, PIECE=PIECE,
            SCHEDULE=SCHEDULE, Q_IN_REGISTERS=Q_IN_REGISTERS, O_BY_Q=O_BY_Q,
            HAS_SUMS=sums is not None, BY_SUM=BY_SUM, ADDS=ADDS,
        ),
    )
    NORMALIZERS: gl.constexpr = 1 if K_NORM != "none" else 0
    gl.warp_specialize(
        [
            (work, (program, warpgroup))
            for warpgroup in (0, 1, 2, 3, 4, 5)[:NUM_CONSUMERS + NORMALIZERS + 1]
        ],
        [4] * (NUM_CONSUMERS - 1 + NORMALIZERS) + [1],
        [CONSUMER_REGISTERS] * (NUM_CONSUMERS - 1) + [NORM_REGISTERS] * NORMALIZERS + [24],
    )


class Config(NamedTuple):
    """How the kernel divides its work.

    Attributes:
        block_keys: keys per step.
        rows: queries per warpgroup, 64 or 128.
        consumers: warpgroups; a tile has rows * consumers queries.
        stages: length of the rings of K and of V.
        schedule: as ``blocks.add_block`` explains.
        q_in_registers: pieces of Q that products take from there; if all, its slot is free then.
        o_by_q: whether O leaves by the slots of Q, which are not free at once then.
    """

    block_keys: int
    rows: int
    consumers: int
    stages: int
    schedule: str
    q_in_registers: int
    o_by_q: bool = False


# by the room of the head dim and causality, measured on an H200: docs/log.md
CONFIGS = {
    (64, False): Config(64, 128, 2, 4, "overlap", 1),
    (64, True): Config(64, 128, 2, 4, "overlap", 0),
    (128, False): Config(128, 64, 2, 2, "paired", 1),
    (128, True): Config(64, 64, 2, 4, "overlap", 1),
    (192, False): Config(64, 64, 2, 2, "overlap", 3),
    (192, True): Config(64, 64, 2, 2, "overlap", 3),
    (256, False): Config(64, 64, 2, 2, "serial", 1, o_by_q=True),
    (256, True): Config(64, 64, 2, 2, "serial", 1, o_by_q=True),
}
# the same for up to SHORT_ROWS queries, which would leave half of a tile empty
SHORT_ROWS = 128
SHORT = CONFIGS | {(64, False): Config(64, 64, 2, 4, "overlap", 1)}
# for activations that special functions hold up
IN_TURNS = ("sigmoid", "silu", "softplus")
TURNS = {
    (64, False): Config(128, 64, 2, 3, "turns", 1),
    (64, True): Config(64, 64, 3, 4, "turns", 1),
    (128, False): Config(128, 64, 2, 2, "turns", 1),
    (128, True): Config(64, 64, 2, 4, "turns", 1),
}
# for many instructions a score: others compute where a warpgroup waits for its own results
FOUR_GROUPS = {(64, causal): Config(64, 64, 4, 4, "overlap", 0) for causal in (False, True)}
BY_ACTIVATION = {
    "gelu": CONFIGS | FOUR_GROUPS,
    **dict.fromkeys(IN_TURNS, TURNS | FOUR_GROUPS),
}
# where rows are summed
SUMMED = {
    (64, False): Config(64, 64, 4, 4, "overlap", 0),
    (64, True): Config(128, 64, 2, 3, "turns", 1),
    (128, False): Config(128, 64, 2, 2, "turns", 0),
    (128, True): Config(128, 64, 2, 2, "relay", 0),
}
# the same if a sum's weights take more than powers of relu do
PINNED_SUMS = {(64, False): Config(64, 64, 4, 4, "pinned", 0)}
# for powers of relu, and the same where q has a norm
POWERS = SUMMED | {(128, False): Config(64, 64, 2, 4, "deep", 0)}
POWERS_NORMED = CONFIGS | {(64, False): Config(128, 64, 2, 3, "relay", 1)}
NORMED = Config(64, 128, 2, 4, "serial", 1)  # where K has a norm
ROOTS_LAST = (torch.bfloat16,)  # dtypes that hold weights of queries without their r
SHORTEST_PIECE = 16  # keys of a last block that is cut


def piece_of(num_keys: int, block: int) -> int:
    """Keys of the last block as a power of two; 0: as in others, as where the loop had no step."""
    rest = num_keys % block
    piece = max(triton.next_power_of_2(rest), SHORTEST_PIECE)
    return piece if rest and piece < block and num_keys > 2 * block else 0


def _choose_configs(call: Call) -> dict[tuple[int, bool], Config]:
    activation, has_norm = call.terms.activation, call.qk_norm.kinds["q"] != "none"
    is_power, is_short = DEGREES.get(activation, 0) > 1, call.num_queries <= SHORT_ROWS
    if activation in IN_TURNS and (has_norm or is_short):
        return TURNS
    if (is_power or call.has_sums) and not has_norm:
        configs = POWERS if is_power else SUMMED
        is_longer = call.has_sums and (activation == "exp" or call.terms.bias != 0.0)
        return configs | PINNED_SUMS if is_longer else configs
    if is_short:
        return SHORT
    if has_norm:  # which wants q in registers: its r then comes last
        return POWERS_NORMED if is_power else CONFIGS
    return BY_ACTIVATION.get(activation, CONFIGS)


def launch(
    call: Call, recorder: Recorder, o: Tensor | None, layout: Layout, sums: Tensor | None = None
) -> None:
    """Write the result to o, or take it to the call's totals, and write the rows' sums."""
    if o is not None and layout is not Layout.HEADS_FIRST:
        o = o.transpose(1, 2)
    causal = call.terms.right is not None
    activation = call.terms.activation
    config = _choose_configs(call)[room_of(call.q.shape[3]), causal]
    norms = call.qk_norm.kinds
    if norms["k"] != "none":
        config = NORMED
    if config.schedule == "deep" and call.num_keys <= 2 * config.block_keys:  # too few to overlap
        config = config._replace(schedule="overlap")
    row_tiles = -(-call.num_queries // (config.rows * config.consumers))
    tiles = row_tiles * call.q_heads * call.num_samples
    gpu = torch.cuda.get_device_properties(call.q.device)
    section = None
    if causal:
        work = _describe_work(call, row_tiles, config.rows * config.consumers)
        section = size_section(work, gpu.multi_processor_count, gpu.L2_cache_size)
    arguments = only(hopper_forward_kernel, call.arguments())
    arguments |= form_of(activation, call.rounds_weights, arguments) | _goal_of(call, o, config)
    roots_last = (
        norms["q"] != "none" and config.q_in_registers > 0 and activation in DEGREES
        and not causal and call.terms.bias == 0.0 and call.q.dtype in ROOTS_LAST
    )
    registers = (REGISTERS if norms["k"] == "none" else REGISTERS_NORMED)[config.consumers]
    programs = min(tiles, gpu.multi_processor_count)
    recorder.launch(hopper_forward_kernel, programs, arguments | {
        "q": describe(call.q, config.rows),
        "k": describe(call.k, config.block_keys),
        "v": describe(call.v, config.block_keys),
        "sums": sums, "B": call.num_samples, "group": call.group, "section": section,
        "row_tiles": row_tiles,
        "CAUSAL": causal, "PIECE": 0 if causal else piece_of(call.num_keys, config.block_keys),
        "ROOTS_LAST": roots_last, "DEGREE": DEGREES.get(activation, 0),
        "NUM_CONSUMERS": config.consumers, "STAGES": config.stages,
        "SCHEDULE": config.schedule, "Q_IN_REGISTERS": config.q_in_registers,
        "PIECES": split_dim(call.q.shape[3])[1], "O_BY_Q": config.o_by_q and o is not None,
        "CONSUMER_REGISTERS": registers, "num_warps": 4,
    }, call.roles | ({"o": Role.TOTALS} if o is None else {}))


def _describe_work(call: Call, row_tiles: int, rows: int) -> CausalWork:
    """What a causal launch has to do."""
    heads, keys = call.q_heads * call.num_samples, call.num_keys
    row_bytes = (call.k.shape[3] + call.v.shape[3]) * call.k.itemsize
    return CausalWork(heads, call.group, row_tiles, rows, keys, 0, keys * row_bytes, products=2)


def _goal_of(call: Call, o: Tensor | None, config: Config) -> dict[str, Any]:
    """Where the result goes: o or the call's totals, by the copy engine where that can be.

    Of totals that registers add to also the strides but that of columns, which is 1.
    """
    names = ("totals", "total_batch", "total_head", "total_row")
    goal: dict[str, Any] = {"o": None, **dict.fromkeys(names)}
    if o is not None:
        return goal | {"o": describe(o, config.rows), "ADDS": False}
    totals = call.totals
    assert totals is not None
    goal["ADDS"] = not call.overwrites
    columns, pieces = split_dim(totals.shape[3])
    if pieces == 1 and is_regular(totals):
        return goal | {"o": describe_sums(totals, config.rows, columns)}
    return goal | dict(zip(names, (totals, *totals.stride()[:3]), strict=True))
