"""Whom backward in one pass serves, and its launches; the kernel is in ``one_pass.py``."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.hopper.backward.configs import ROWS
from flashpoint.ops.gpu.hopper.backward.dq_sums import launch_clear, launch_round
from flashpoint.ops.gpu.hopper.backward.one_pass import hopper_one_pass_kernel
from flashpoint.ops.gpu.hopper.sigmoids import BOTH
from flashpoint.ops.gpu.hopper.tiles import REGISTERS, describe, describe_sums
from flashpoint.ops.gpu.reading import is_regular, room_of
from flashpoint.ops.gpu.replay import Recorder, Role, only


class Config(NamedTuple):
    """How the kernel divides its work.

    Attributes:
        block: queries per step, 64 for each warpgroup's dq.
        stages: length of their rings.
        place: the part of a block beside which dq of the block before is made. None: before all
            of them, which a loop then takes one by one.
    """

    block: int
    stages: int
    place: int | None


# by causality, measured on an H200: docs/log.md
CONFIGS = {False: Config(128, 2, 1), True: Config(128, 2, 0)}
LOOP = Config(128, 2, None)
LOOPED = {"gelu": (False, True), "softplus": (False, True), "silu": (True,)}
"""By causality: both warpgroups' code for all parts of a block is more than the cache for
instructions holds, and they wait for it."""
ROOM = 64  # of the head dims that registers hold
CONSUMERS = 2
SLOTS = 2  # tiles whose rows are in shared memory
LEAST_ROWS = 512  # queries and keys from which on it pays to clear and round sums


def passes_once(call: Call, arguments: dict[str, Any]) -> bool:
    """True where one pass serves a call.

    In fp16 dS would be rounded behind n_i ** -alpha, and leave its range where queries see many
    keys: dk takes that, which adds up many queries, but dq has nothing else.
    """
    has_norm = arguments["Q_NORM"] != "none" or arguments["K_NORM"] != "none"
    is_small = arguments["POWER"] != "none" and arguments["SHRINKS"]
    fits = room_of(call.q.shape[3]) == ROOM and min(call.num_queries, call.num_keys) >= LEAST_ROWS
    return fits and not (has_norm or is_small or keeps_order())


def adds_in_place(call: Call) -> bool:
    """True where dq is added to the call's totals as it is made."""
    return call.totals is not None and is_regular(call.totals)


def keeps_order() -> bool:
    """True where sums must be added in the same order in every call."""
    return torch.are_deterministic_algorithms_enabled()


def launch_one_pass(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor], arguments: dict[str, Any]
) -> None:
    """Write dk and dv by one kernel, and dq, between one that clears its sums and one that rounds.

    With totals that the copy engine can describe, dq is added to these, and one kernel is all: a
    call's last launch (``portable/addition.py`` says why). No sections of heads: for a byte of
    columns it has more products than they are for.
    """
    dq, dk, dv = grads
    causal, activation = call.terms.right is not None, call.terms.activation
    config = LOOP if causal in LOOPED.get(activation, ()) else CONFIGS[causal]
    heads = call.num_samples * call.k.shape[1]
    row_tiles = -(-call.num_keys // (ROWS * CONSUMERS))
    roles = call.backward_roles(Role.G if call.has_sums else Role.DO)
    if adds_in_place(call):
        dq_sums, roles = call.totals, roles | {"dq_sums": Role.TOTALS}
        assert dq_sums is not None
    else:
        dq_sums = recorder.empty(Role.DQ_SUMS, call.q.shape, torch.float32)
        launch_clear(recorder, dq_sums)
    gpu = torch.cuda.get_device_properties(do.device)
    programs = min(row_tiles * heads, gpu.multi_processor_count)
    arguments_of = only(hopper_one_pass_kernel, arguments)
    recorder.launch(hopper_one_pass_kernel, programs, arguments_of | {
        "q": describe(call.q, config.block), "do": describe(do, config.block),
        "k_rows": describe(call.k, ROWS), "v_rows": describe(call.v, ROWS),
        "dk": describe(dk, ROWS), "dv": describe(dv, ROWS), "dq_sums": describe_sums(dq_sums),
        "num_heads": heads, "H": call.k.shape[1], "group": call.group, "row_tiles": row_tiles,
        "num_rows": call.num_keys, "num_columns": call.num_queries,
        "FINISHES": arguments["HAS_SCALE"] or arguments["HAS_BIAS_NUMBER"],
        "IS_RELU": activation == "relu", "SLOPED": activation in BOTH,
        "LIFTS": arguments["SHRINKS"], "CAUSAL": causal,
        "NUM_CONSUMERS": CONSUMERS, "STAGES": config.stages, "SLOTS": SLOTS,
        "PLACE": config.place, "CONSUMER_REGISTERS": REGISTERS[CONSUMERS], "num_warps": 4,
    }, roles)
    if not adds_in_place(call):
        launch_round(recorder, dq_sums, dq)
