"""What a strategy costs besides the attention itself: messages, copies and room.

What is sent is ``flashpoint.distributed``'s own formula. Copies and room are counted in its code.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flashpoint.distributed.call import Sizes
from flashpoint.distributed.strategy import elements_sent
from flashpoint.lab.runs.formats import counted
from flashpoint.lab.scaling.links import Links
from flashpoint.lab.scaling.load import Load

ITEM_BYTES = 2
"""bf16 travels."""

ALONE = "alone"
"""A sequence on one GPU."""


class Copies(NamedTuple):
    """Bytes read and written besides the kernels, forward and backward.

    Attributes:
        of_queries: for an element of q, which has one of o, dq and do beside it.
        of_keys: for an element of k, which has one of v, dk and dv beside it.
    """

    of_queries: tuple[int, int] = (0, 0)
    of_keys: tuple[int, int] = (0, 0)


class Habits(NamedTuple):
    """Of a strategy.

    Attributes:
        exchanged: shares of what is sent forward and backward that go by all-to-all: so do sums in
            bf16, which their receiver adds up in fp32. The rest is gathered, or goes round.
        copied: for all tokens: packing, unpacking, and sums of parts in fp32. On Hopper, whose
            kernels add a ring's blocks to their sums themselves; elsewhere each takes 10 more both
            ways.
        once: the same for a rank's own tokens alone.
        room: bytes for an element of [tokens, E], at its peak in one layer, beyond what is kept:
            what arrives, and gradients before they are sent. Fewer heads of keys take less.
        of_all: whether room is for all tokens, not for a rank's.
        shortens: whether a call's queries or keys are a rank's part.
        overlaps: whether it computes while it sends.
    """

    exchanged: tuple[float, float]
    copied: Copies
    once: Copies
    room: int
    of_all: bool
    shortens: bool = True
    overlaps: bool = False


HABITS: Mapping[str, Habits] = {
    "gather": Habits(
        exchanged=(0, 1 / 2),
        copied=Copies(of_keys=(8, 68)),
        once=Copies((6, 6), (8, 12)),
        room=20,
        of_all=True,
    ),
    "ring": Habits(
        exchanged=(0, 0),
        copied=Copies(of_keys=(0, 28)),
        once=Copies((6, 14), (8, 4)),
        room=32,
        of_all=False,
        overlaps=True,
    ),
    "reduce": Habits(
        exchanged=(1 / 2, 1 / 3),
        copied=Copies(of_queries=(22, 26)),
        once=Copies(of_queries=(2, 14)),
        room=14,
        of_all=True,
    ),
    "ulysses": Habits(
        exchanged=(1, 1),
        copied=Copies(),
        once=Copies((30, 30), (24, 48)),
        room=24,
        of_all=False,
        shortens=False,
    ),
}
"""A ring takes in dk and dv of all tokens, block by block, but has room for two blocks only."""


def why_not(name: str, load: Load, num_ranks: int) -> str | None:
    """Why a strategy cannot serve so many ranks, with a gap for their number; None if it can."""
    if name == "ulysses" and load.num_kv_heads % num_ranks:
        heads = counted(load.num_kv_heads, "head")
        return f"{heads} of {load.name} cannot be divided among {{}} ranks"
    return None


def bytes_sent(name: str, load: Load, tokens: int, num_ranks: int) -> tuple[int, int]:
    """By each rank for one sample and layer, forward and backward."""
    if num_ranks == 1:
        return 0, 0
    dim = load.head_dim
    sizes = Sizes(1, load.num_heads, load.num_kv_heads, dim, dim)
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
    parts = ((tokens, habits.copied), (own, habits.once))
    forward, backward = (
        sum(
            count * (load.width * copies.of_queries[way] + load.kv_width * copies.of_keys[way])
            for count, copies in parts
        )
        for way in (0, 1)
    )
    return forward, backward


def bytes_of_room(name: str, load: Load, tokens: int, num_ranks: int) -> int:
    """That a rank needs in one layer for one sample, beyond what is kept."""
    if num_ranks == 1:
        return 0
    habits = HABITS[name]
    return habits.room * load.width * (tokens if habits.of_all else tokens // num_ranks)
