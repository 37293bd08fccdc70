"""How launches of the backward kernel divide their work; names as in ``kernel.py``."""

from typing import NamedTuple

from flashpoint.ops.gpu.activations import DEGREES
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.reading import room_of

ROWS = 64  # of a warpgroup
SPLIT_SIDES = ("values", "keys", "queries")  # in the order of their launches
SPLIT_ROOMS = (192, 256)  # where registers do not hold dk beside dv
SHORTEST = 16  # columns of a piece of a block


class Config(NamedTuple):
    """How the kernel divides its work.

    Attributes:
        block: columns per step.
        stages: length of their rings.
        consumers: warpgroups; a tile has ROWS * consumers rows.
        slots: tiles whose rows are in shared memory, this one's and perhaps the next one's.
        in_registers: pieces of a that products take from there, where b has none.
        lags: da of a block runs beside the next block's scores, for powers of relu.
    """

    block: int
    stages: int
    consumers: int = 2
    slots: int = 2
    in_registers: int = 0
    lags: bool = False


# by side, room of the head dim and causality, measured on an H200: docs/log.md
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
# the same for powers of relu that see all keys, by side and room
POWERS = {
    ("keys", 64): Config(128, 2),
    ("queries", 64): Config(128, 2),
    ("keys", 128): Config(64, 4, slots=1, lags=True),
    ("queries", 128): Config(64, 3, lags=True),
}
# the same where SIGNED, and by that where signs pay; blocks of 64 queries on the keys side
SIGNED_CONFIGS = {
    ("keys", 128, False): Config(64, 2),
    ("keys", 128, True): Config(64, 2),
    ("queries", 128, False): Config(128, 2),
    ("queries", 128, True): Config(128, 2),
}
# the same where dv, dk and dq have a launch each
SPLIT_CONFIGS = {
    (side, room, causal): config
    for room, config in (
        (192, Config(64, 2, in_registers=3)),
        (256, Config(64, 2, slots=1, in_registers=1)),
    )
    for side in SPLIT_SIDES
    for causal in (False, True)
}
# the same, by room and whether h is relu without sums, of both sides in one launch: relu or a
# power of it, as many queries as keys, all seen
BOTH_CONFIGS = {(64, True): Config(128, 2), (64, False): Config(64, 4)}


def pieces_of(columns: int, block: int) -> tuple[int, int]:
    """The last block's columns as one or two powers of two from 16 on; 0, 0 if it is as others.

    As where it is the only one: a loop over those before it must run (``kernel.py``).
    """
    if columns < block:
        return 0, 0
    rest = -(-(columns % block) // SHORTEST) * SHORTEST
    piece = 1 << rest.bit_length() - 1 if rest else 0
    last = rest - piece
    if last & (last - 1):  # three pieces cost as much as a block
        return 0, 0
    return (piece, last) if piece < block else (0, 0)


def choose_config(side: str, call: Call, signed: bool, has_norm: bool) -> Config:
    """That of one launch."""
    dim, is_relu = room_of(call.q.shape[3]), call.terms.activation == "relu"
    causal = call.terms.right is not None
    if dim in SPLIT_ROOMS:
        return SPLIT_CONFIGS[side, dim, causal]
    if side == "both":
        return BOTH_CONFIGS[dim, is_relu and not call.has_sums]
    if call.terms.activation in DEGREES and not (is_relu or has_norm or causal):
        return POWERS[side, dim]
    # others than relu need more registers: they take the smaller of two blocks
    return (SIGNED_CONFIGS if signed else CONFIGS)[side, dim, causal or not is_relu]
