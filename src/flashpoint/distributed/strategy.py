"""Which strategy sends least, or takes least time where rates are known.

f = (P - 1)/P; elements that each rank sends, for one sample and shards of one length:

    gather, ring   forward f Lk Hk (D + Dv)                       backward twice that
    reduce         forward f Lq Hq (D + Dv)                       backward f Lq Hq (2 D + Dv)
    ulysses        f/P (Lq Hq + Lk Hk) (D + Dv)                   backward the same

Of uneven shards a ring sends what they hold, and all-gathers pad to the longest. fp16's partial
sums travel in fp32, so bytes are compared, not elements.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.distributed.blocks import who_sees
from flashpoint.distributed.call import ShardedCall, Sizes, partial_dtype
from flashpoint.distributed.layout import Shards
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
        least = "takes least time" if self.seconds else "sends fewest bytes"
        return "\n".join([f"{self.strategy}: {least} a rank", *lines])


def choose(call: ShardedCall, dtype: torch.dtype, rates: Rates | None) -> Choice:
    """The best strategy for a call whose inputs have a dtype."""
    sent = {name: elements(call, name, dtype) for name in STRATEGIES}
    num_bytes = {
        name: sum(message.num_bytes for way in _messages(call, name, dtype) for message in way)
        for name in STRATEGIES
    }
    why = {name: why_not(call, name) for name in STRATEGIES}
    refused = {name: reason for name, reason in why.items() if reason is not None}
    seconds = {name: _seconds(call, name, dtype, rates) for name in STRATEGIES} if rates else {}
    able = [name for name in STRATEGIES if name not in refused]
    best = min(able, key=lambda name: (seconds or num_bytes)[name])
    forward, backward = ({name: pair[way] for name, pair in sent.items()} for way in (0, 1))
    return Choice(best, forward, backward, seconds, refused)


def why_not(call: ShardedCall, name: str) -> str | None:
    """Why a strategy cannot serve a call; None if it can."""
    size = call.transport.size
    if name == "reduce" and call.has_rows:
        has = "has" if len(call.has_rows) == 1 else "have"
        return f"{' and '.join(call.has_rows)} {has} rows of queries, which travel without them"
    if name != "ulysses" or not (call.sizes.q_heads % size or call.sizes.kv_heads % size):
        return None
    heads = f"{call.sizes.q_heads} query heads and {call.sizes.kv_heads} key heads"
    return f"{heads} do not divide among {size} ranks"


def check_serves(call: ShardedCall, name: str) -> None:
    """Refuse a strategy by name that cannot serve."""
    reason = why_not(call, name)
    if reason is not None:
        raise UnsupportedError(f"strategy='{name}': {reason}. Pass strategy='ring', or 'auto'.")


def elements(call: ShardedCall, name: str, dtype: torch.dtype) -> tuple[int, int]:
    """That each rank sends forward and backward, on average over ranks; rows' sums left out."""
    forward, backward = (
        round(sum(message.elements for message in way)) for way in _messages(call, name, dtype)
    )
    return forward, backward


class _Message(NamedTuple):
    """What each rank sends at once, on average over ranks."""

    elements: float
    dtype: torch.dtype

    @property
    def num_bytes(self) -> float:
        """Its size."""
        return self.elements * self.dtype.itemsize


def _messages(
    call: ShardedCall, name: str, dtype: torch.dtype
) -> tuple[list[_Message], list[_Message]]:
    """Those of forward and of backward, for inputs of a dtype."""
    B, q_heads, kv_heads, D, Dv = call.sizes
    size, partial = call.transport.size, partial_dtype(dtype)
    if name == "ulysses":
        rows = B * (call.queries.total * q_heads + call.keys.total * kv_heads)
        each_way = [_Message((size - 1) / size**2 * rows * (D + Dv), dtype)]
        return each_way + _score_rows(call), each_way + _score_rows(call, with_gradient=True)
    if name == "reduce":
        width = (size - 1) * B * q_heads
        gathered = width * max(call.queries.lengths)
        scattered = width * _scattered(call, call.queries, partial)
        forward = [_Message(gathered * D, dtype), _Message(scattered * Dv, partial)]
        return forward, [_Message(gathered * (D + Dv), partial), _Message(scattered * D, partial)]
    width = B * kv_heads * (D + Dv)
    if name == "gather":
        forward = [_Message((size - 1) * width * max(call.keys.lengths), dtype)]
        scattered = (size - 1) * width * _scattered(call, call.keys, dtype)
        return forward, [*forward, _Message(scattered, dtype)]
    passed, seen = _ring_tokens(call)
    forward = [_Message(width * passed, dtype)]
    return forward, [*forward, _Message(width * seen, partial)]


def _score_rows(call: ShardedCall, *, with_gradient: bool = False) -> list[_Message]:
    """Rows of bias and mask in ``ulysses``, of all keys; those of one head go to every rank."""
    size = call.transport.size
    found: list[_Message] = []
    for name in call.has_rows:
        x: Tensor = getattr(call, name)
        heads = size if x.shape[1] == 1 else x.shape[1]
        each = (size - 1) / size**2 * x.shape[0] * heads * call.queries.total * x.shape[3]
        if x.requires_grad or not with_gradient:
            found.append(_Message(each, x.dtype))
    return found


def elements_sent(
    name: str, sizes: Sizes, lengths: tuple[int, int], num_ranks: int
) -> tuple[int, int]:
    """The table's formulas: of even shards in which every key is seen, without ranks to ask.

    Args:
        name: of the strategy.
        sizes: of the tensors.
        lengths: Lq and Lk of the whole sequence.
        num_ranks: that share it.

    Example:
        >>> elements_sent("gather", Sizes(1, 8, 8, 64, 64), (1024, 1024), 4)
        (786432, 1572864)
    """
    B, q_heads, kv_heads, D, Dv = sizes
    share = B * (num_ranks - 1) / num_ranks
    queries, keys = lengths[0] * q_heads, lengths[1] * kv_heads
    if name in ("gather", "ring"):
        forward = share * keys * (D + Dv)
        backward = 2 * forward
    elif name == "reduce":
        forward = share * queries * (D + Dv)
        backward = share * queries * (2 * D + Dv)
    else:
        forward = backward = share / num_ranks * (queries + keys) * (D + Dv)
    return round(forward), round(backward)


def _scattered(call: ShardedCall, shards: Shards, dtype: torch.dtype) -> float:
    """Tokens in a rank's part of a reduce-scatter; NCCL's own pads to the longest."""
    pads = call.transport.has_nccl and dtype.itemsize >= 4
    return max(shards.lengths) if pads else shards.total / len(shards.ranges)


def _ring_tokens(call: ShardedCall) -> tuple[float, float]:
    """Keys that a rank passes on, and those of others that it sees, on average over ranks."""
    size, seen_by = call.transport.size, who_sees(call)
    passed = seen = 0
    for origin, length in enumerate(call.keys.lengths):
        hops = [hop for hop in range(1, size) if seen_by[(origin + hop) % size][origin]]
        passed += length * max(hops, default=0)
        seen += length * len(hops)
    return passed / size, seen / size


def _seconds(call: ShardedCall, name: str, dtype: torch.dtype, rates: Rates) -> float:
    """An estimate: work is taken to be even over ranks.

    A ring hides what it sends behind a GPU's work. gloo takes the cores that compute.
    """
    hides = name == "ring" and call.transport.has_nccl
    B, q_heads, _, D, Dv = call.sizes
    flops = 2 * B * q_heads * call.num_scores * (D + Dv)
    forward_s = flops / call.transport.size / rates.flops_per_s
    total = 0.0
    for way, compute_s in zip(
        _messages(call, name, dtype), (forward_s, 2.5 * forward_s), strict=True
    ):
        send_s = sum(message.num_bytes for message in way) / rates.link_bytes_per_s
        total += max(send_s, compute_s) if hides else send_s + compute_s
    return total
