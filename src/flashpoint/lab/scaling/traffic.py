"""What a strategy costs besides the attention itself: messages, copies and room.

What is sent is ``flashpoint.distributed``'s own formula. Copies and room are counted in its code.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flashpoint.distributed.call import Sizes
from flashpoint.distributed.strategy import elements_sent
from flashpoint.lab.scaling.links import Links
from flashpoint.lab.scaling.load import Load

ITEM_BYTES = 2
"""bf16 travels."""

ALONE = "alone"
"""A sequence on one GPU."""


class Habits(NamedTuple):
    """Of a strategy; bytes are for an element of [tokens, E].

    Attributes:
        exchanged: shares of what is sent forward and backward that go by all-to-all: so do sums in
            bf16, which their receiver adds up in fp32. The rest is gathered, or goes round.
        copied: read and written besides the kernels, forward and backward, for all tokens:
            packing, unpacking, and sums of parts in fp32. On Hopper, whose kernels add a ring's
            blocks to their sums themselves; elsewhere each takes 10 more both ways.
        once: the same for a rank's own tokens alone.
        room: at its peak in one layer, beyond what is kept: what arrives, and gradients before
            they are sent.
        of_all: whether room is for all tokens, not for a rank's.
        shortens: whether a call's queries or keys are a rank's part.
        overlaps: whether it computes while it sends.
    """

    exchanged: tuple[float, float]
    copied: tuple[int, int]
    once: tuple[int, int]
    room: int
    of_all: bool
    shortens: bool = True
    overlaps: bool = False


HABITS: Mapping[str, Habits] = {
    "gather": Habits((0, 1 / 2), (8, 68), (14, 18), 20, of_all=True),
    "ring": Habits((0, 0), (0, 28), (14, 18), 32, of_all=False, overlaps=True),
    "reduce": Habits((1 / 2, 1 / 3), (22, 26), (2, 14), 14, of_all=True),
    "ulysses": Habits((1, 1), (0, 0), (54, 78), 24, of_all=False, shortens=False),
}
"""A ring takes in dk and dv of all tokens, block by block, but has room for two blocks only."""


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


def seconds_sending(
    name: str, load: Load, tokens: int, num_ranks: int, links: Links
) -> tuple[float, float]:
    """For one sample and layer, forward and backward, as if nothing else happened."""
    habits = HABITS[name]
    way = "ring" if habits.overlaps else "collective"
    sent = bytes_sent(name, load, tokens, num_ranks)
    forward, backward = (
        links.seconds("all_to_all", share * count, num_ranks)
        + links.seconds(way, (1 - share) * count, num_ranks)
        for share, count in zip(habits.exchanged, sent, strict=True)
    )
    return forward, backward


def bytes_copied(name: str, load: Load, tokens: int, num_ranks: int) -> tuple[int, int]:
    """By each rank for one sample and layer, forward and backward."""
    if num_ranks == 1:
        return 0, 0
    habits, own = HABITS[name], tokens // num_ranks
    forward, backward = (
        load.width * (each * tokens + once * own)
        for each, once in zip(habits.copied, habits.once, strict=True)
    )
    return forward, backward


def bytes_of_room(name: str, load: Load, tokens: int, num_ranks: int) -> int:
    """That a rank needs in one layer for one sample, beyond what is kept."""
    if num_ranks == 1:
        return 0
    habits = HABITS[name]
    return habits.room * load.width * (tokens if habits.of_all else tokens // num_ranks)
