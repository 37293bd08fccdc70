"""Which strategy sends least, or takes least time where rates are known.

f = (P - 1)/P; elements that each rank sends, for one sample:

    gather, ring   forward f Lk Hk (D + Dv)                       backward twice that
    reduce         forward f Lq Hq (D + Dv)                       backward f Lq Hq (2 D + Dv)
    ulysses        f/P (Lq Hq + Lk Hk) (D + Dv)                   backward the same
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flashpoint.distributed.blocks import blocks_of
from flashpoint.distributed.call import ShardedCall, Sizes
from flashpoint.errors import InputError, UnsupportedError, describe
from flashpoint.ops.check import check_number

STRATEGIES = ("ring", "gather", "reduce", "ulysses")  # ties go to the earlier


class Rates(NamedTuple):
    """How fast this machine is.

    Attributes:
        link_bytes_per_s: that a rank sends, all links together.
        flops_per_s: of the attention kernels, forward.
    """

    link_bytes_per_s: float
    flops_per_s: float


def check_rates(rates: Any) -> None:
    """Both finite and positive."""
    if not isinstance(rates, Rates):
        raise InputError(f"rates must be a flashpoint.distributed.Rates. Got {describe(rates)}.")
    for name, value in rates._asdict().items():
        if check_number(name, value) <= 0:
            raise InputError(f"{name} must be positive. Got {describe(value)}.")


class Choice(NamedTuple):
    """What ``auto`` found; ``str`` of it says why.

    Attributes:
        strategy: the one chosen.
        forward, backward: elements that each rank sends, by strategy.
        seconds: a call's, forward and backward, by strategy; empty where no rates are known.
        refused: why others cannot serve, by strategy.
    """

    strategy: str
    forward: Mapping[str, int]
    backward: Mapping[str, int]
    seconds: Mapping[str, float]
    refused: Mapping[str, str]

    def __str__(self) -> str:
        lines: list[str] = []
        for name in STRATEGIES:
            if name in self.refused:
                lines.append(f"  {name:8} cannot serve: {self.refused[name]}")
                continue
            time = f", {1e3 * self.seconds[name]:.3g} ms" if self.seconds else ""
            sent = f"{self.forward[name]:,} forward, {self.backward[name]:,} backward"
            lines.append(f"{'*' if name == self.strategy else ' '} {name:8} sends {sent}{time}")
        least = "takes least time" if self.seconds else "sends fewest elements"
        return "\n".join([f"{self.strategy}: {least} a rank", *lines])


def choose(call: ShardedCall, itemsize: int, rates: Rates | None) -> Choice:
    """The best strategy for a call whose elements have so many bytes."""
    sent = {name: elements(call, name) for name in STRATEGIES}
    why = {name: why_not(call, name) for name in STRATEGIES}
    refused = {name: reason for name, reason in why.items() if reason is not None}
    seconds = {name: _seconds(call, name, itemsize, rates) for name in STRATEGIES} if rates else {}
    able = [name for name in STRATEGIES if name not in refused]
    best = min(able, key=lambda name: seconds[name] if seconds else sum(sent[name]))
    forward, backward = ({name: pair[way] for name, pair in sent.items()} for way in (0, 1))
    return Choice(best, forward, backward, seconds, refused)


def why_not(call: ShardedCall, name: str) -> str | None:
    """Why a strategy cannot serve a call; None if it can."""
    size = call.transport.size
    if name != "ulysses" or not (call.sizes.q_heads % size or call.sizes.kv_heads % size):
        return None
    heads = f"{call.sizes.q_heads} query heads and {call.sizes.kv_heads} key heads"
    return f"{heads} do not divide among {size} ranks"


def check_serves(call: ShardedCall, name: str) -> None:
    """Refuse a strategy by name that cannot serve."""
    reason = why_not(call, name)
    if reason is not None:
        raise UnsupportedError(f"strategy='{name}': {reason}. Pass strategy='ring', or 'auto'.")


def elements(call: ShardedCall, name: str) -> tuple[int, int]:
    """That each rank sends forward and backward, on average over ranks."""
    lengths = call.queries.total, call.keys.total
    shares = _ring_shares(call) if name == "ring" else (1.0, 1.0)
    return elements_sent(name, call.sizes, lengths, call.transport.size, shares)


def elements_sent(
    name: str,
    sizes: Sizes,
    lengths: tuple[int, int],
    num_ranks: int,
    ring_shares: tuple[float, float] = (1.0, 1.0),
) -> tuple[int, int]:
    """The same from sizes alone, without ranks to ask.

    Args:
        name: of the strategy.
        sizes: of the tensors.
        lengths: Lq and Lk of the whole sequence.
        num_ranks: that share it.
        ring_shares: of a ring's hops that are made, and of pairs of ranks where keys are seen.

    Example:
        >>> elements_sent("gather", Sizes(1, 8, 8, 64, 64), (1024, 1024), 4)
        (786432, 1572864)
    """
    B, q_heads, kv_heads, D, Dv = sizes
    share = B * (num_ranks - 1) / num_ranks
    queries, keys = lengths[0] * q_heads, lengths[1] * kv_heads
    if name == "gather":
        forward = share * keys * (D + Dv)
        backward = 2 * forward
    elif name == "ring":
        passed, seen = ring_shares
        forward = share * keys * (D + Dv) * passed
        backward = share * keys * (D + Dv) * (passed + seen)
    elif name == "reduce":
        forward = share * queries * (D + Dv)
        backward = share * queries * (2 * D + Dv)
    else:
        forward = backward = share / num_ranks * (queries + keys) * (D + Dv)
    return round(forward), round(backward)


def _ring_shares(call: ShardedCall) -> tuple[float, float]:
    """Shares of a ring's hops that are made, and of pairs of ranks where keys are seen."""
    size = call.transport.size
    if size == 1:
        return 0.0, 0.0
    made = seen = 0
    for origin, keys in enumerate(call.keys.ranges):
        farthest = 0
        for hop in range(1, size):
            queries = call.queries.ranges[(origin + hop) % size]
            if any(True for _ in blocks_of(queries, keys, call)):
                farthest, seen = hop, seen + 1
        made += farthest
    pairs = size * (size - 1)
    return made / pairs, seen / pairs


def _seconds(call: ShardedCall, name: str, itemsize: int, rates: Rates) -> float:
    """An estimate: work is taken to be even over ranks, and a ring hides what it sends."""
    B, q_heads, _, D, Dv = call.sizes
    flops = 2 * B * q_heads * call.queries.total * call.keys.total * (D + Dv)
    forward_s = flops / call.transport.size / rates.flops_per_s
    total = 0.0
    for sent, compute_s in zip(elements(call, name), (forward_s, 2.5 * forward_s), strict=True):
        send_s = sent * itemsize / rates.link_bytes_per_s
        total += max(send_s, compute_s) if name == "ring" else send_s + compute_s
    return total
