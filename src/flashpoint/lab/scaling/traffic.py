"""What a strategy costs besides the attention itself: messages, copies and room.

What is sent is ``flashpoint.distributed``'s own formula. Copies and room are counted in its code.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flashpoint.distributed.call import Sizes
from flashpoint.distributed.strategy import elements_sent
from flashpoint.lab.scaling.load import Load

ITEM_BYTES = 2
"""bf16 travels."""

ALONE = "alone"
"""A sequence on one GPU."""


class Habits(NamedTuple):
    """Of a strategy; bytes are for an element of [tokens, E].

    Attributes:
        message: how it sends; see ``Links.seconds``.
        copied: read and written besides the kernels, forward and backward: packing, unpacking, and
            sums of parts in fp32.
        room: at its peak in one layer, beyond what is kept: what arrives, and gradients before
            they are sent.
        of_all: whether these count for all tokens, not for a rank's.
        shortens: whether a call's queries or keys are a rank's part.
        overlaps: whether it computes while it sends.
    """

    message: str
    copied: tuple[int, int]
    room: int
    of_all: bool
    shortens: bool = True
    overlaps: bool = False


HABITS: Mapping[str, Habits] = {
    "gather": Habits("collective", (8, 52), 20, of_all=True),
    "ring": Habits("ring", (10, 70), 36, of_all=False, overlaps=True),
    "reduce": Habits("collective", (38, 42), 18, of_all=True),
    "ulysses": Habits("all_to_all", (32, 32), 24, of_all=False, shortens=False),
}
"""A ring copies for all tokens, block by block, but has room for two blocks only."""


def why_not(name: str, load: Load, num_ranks: int) -> str | None:
    """Why a strategy cannot serve so many ranks, with a gap for their number; None if it can."""
    if name == "ulysses" and load.num_heads % num_ranks:
        return f"{load.num_heads} heads of {load.name} do not divide among {{}} ranks"
    return None


def bytes_sent(name: str, load: Load, tokens: int, num_ranks: int) -> tuple[int, int]:
    """By each rank for one sample and layer, forward and backward."""
    if num_ranks == 1:
        return 0, 0
    heads, dim = load.num_heads, load.head_dim
    sizes = Sizes(1, heads, heads, dim, dim)
    forward, backward = elements_sent(name, sizes, (tokens, tokens), num_ranks)
    return ITEM_BYTES * forward, ITEM_BYTES * backward


def bytes_copied(name: str, load: Load, tokens: int, num_ranks: int) -> tuple[int, int]:
    """By each rank for one sample and layer, forward and backward."""
    if num_ranks == 1:
        return 0, 0
    habits = HABITS[name]
    everything = habits.of_all or habits.overlaps
    elements = load.width * (tokens if everything else tokens // num_ranks)
    return habits.copied[0] * elements, habits.copied[1] * elements


def bytes_of_room(name: str, load: Load, tokens: int, num_ranks: int) -> int:
    """That a rank needs in one layer for one sample, beyond what is kept."""
    if num_ranks == 1:
        return 0
    habits = HABITS[name]
    return habits.room * load.width * (tokens if habits.of_all else tokens // num_ranks)
