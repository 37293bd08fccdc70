"""Blocks of keys and values go round; the next one travels while one is computed.

    forward: k, v pass P - 1 ranks                             2 f L Hk D elements a rank
    backward: the same, and dk, dv go straight to their owner  4 f L Hk D, where f = (P - 1)/P

A block goes no further than the last rank that sees it, so with a window most are not sent. Its
owner adds up dk and dv in fp32: sums that travel along would be rounded at each rank.
"""

from typing import Any

import torch
from torch import Tensor

from flashpoint.distributed.blocks import who_sees
from flashpoint.distributed.call import ShardedCall, block_dtype, partial_dtype
from flashpoint.distributed.division import divide, undivide
from flashpoint.distributed.first_order import first_order
from flashpoint.distributed.partial import Partial, PartialGradients
from flashpoint.distributed.saved import load, save
from flashpoint.distributed.transport import Pending, Receive, Send, pack, widened

_KEYS, _GRADIENTS = "keys and values", "gradients of keys and values"


class Ring(torch.autograd.Function):
    """This rank's o, and its sums if the call has any, from blocks that go round."""

    @staticmethod
    def forward(
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """o and sums of this rank's queries; the call has bias and mask."""
        queries = call.queries.ranges[call.rank]
        blocks = Travel(call, k, v)
        partial = Partial(call, q, queries, more=blocks.count_seen_by(call.rank) > 1)
        for step in range(call.transport.size):
            pending = blocks.pass_on(step)
            if blocks.is_seen_by(call.rank, blocks.origin):
                partial.add(*blocks.held, call.keys.ranges[blocks.origin])
            blocks.arrive(pending)
        o = divide(call, queries, partial.numerators, partial.sums, q.dtype)
        kept = (o, partial.sums) if call.divides else (None, None)
        save(ctx, call, q, k, v, *kept)
        return o, partial.sums

    @staticmethod
    @first_order
    def backward(ctx: Any, do: Tensor | None, dsums: Tensor | None) -> Any:
        """None for the call, then dq, dk, dv, dbias and dmask of this rank."""
        call, (q, k, v, o, sums) = load(ctx)
        queries = call.queries.ranges[call.rank]
        grads = undivide(call, queries, do, dsums, o, sums, block_dtype(call, q.dtype))
        blocks, home = Travel(call, k, v), _Home(call, k, v, partial_dtype(k.dtype))
        more = blocks.count_seen_by(call.rank) > 1
        partial = PartialGradients(call, q, queries, grads, more=more)
        for step in range(call.transport.size):
            pending = blocks.pass_on(step)
            found = None
            if blocks.is_seen_by(call.rank, blocks.origin):
                found = partial.add(*blocks.held, call.keys.ranges[blocks.origin])
            home.deliver(step, found, blocks)
            blocks.arrive(pending)
        dk, dv = home.finish()
        of_scores = partial.scores.finish()
        return None, partial.dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *of_scores


class Travel:
    """The block of keys and values that this rank holds, and who holds which when.

    In step s rank r holds the block of rank r - s.
    """

    def __init__(self, call: ShardedCall, k: Tensor, v: Tensor) -> None:
        self.call, self.transport = call, call.transport
        self.message = pack([k, v], k.dtype)
        self.held: tuple[Tensor, Tensor] = (k, v)
        self.origin = call.rank
        self._seen = who_sees(call)

    def is_seen_by(self, rank: int, origin: int) -> bool:
        """Whether a rank's queries see any of the keys of ``origin``."""
        return self._seen[rank][origin]

    def count_seen_by(self, rank: int) -> int:
        """How many ranks' keys a rank's queries see any of."""
        return sum(self._seen[rank])

    def goes_on(self, origin: int, step: int) -> bool:
        """Whether somebody still waits for a block behind this step."""
        size = self.transport.size
        return any(self._seen[(origin + later) % size][origin] for later in range(step + 1, size))

    def pass_on(self, step: int) -> "tuple[Pending, list[Receive]]":
        """Begin to send the block held to the next rank, and to receive the one behind it."""
        rank, size = self.transport.rank, self.transport.size
        following, before = (rank + 1) % size, (rank - 1) % size
        self.origin = (rank - step) % size
        coming = (self.origin - 1) % size
        sends, receives = [], []
        if self.goes_on(self.origin, step):
            sends = [Send(following, self.message, _KEYS)]
        if self.goes_on(coming, step):
            shapes = self.call.key_shapes(coming)
            receives = [Receive(before, shapes, self.message, _KEYS)]
        return self.transport.start(sends, receives), receives

    def arrive(self, passing: "tuple[Pending, list[Receive]]") -> None:
        """Hold the block that comes."""
        pending, receives = passing
        pending.wait()
        for receive in receives:
            k, v = receive.tensors
            self.message, self.held = receive.message, (k, v)


class _Home:
    """dk and dv of this rank's keys, added up from what all ranks send."""

    def __init__(self, call: ShardedCall, k: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        self.call, self.dtype = call, dtype
        self.like = k.new_empty(0, dtype=dtype)
        self.total: list[Tensor] = []
        self.shapes = call.key_shapes(call.rank)
        self.passing: tuple[Pending, list[Receive]] | None = None

    def deliver(self, step: int, found: tuple[Tensor, Tensor] | None, blocks: Travel) -> None:
        """Send a block's gradients to its owner, and take in those of the step before."""
        self._take_in()
        transport = self.call.transport
        if step == 0:
            dtype = widened(self.dtype)
            if found is None:
                self.total = [self.like.new_zeros(x, dtype=dtype) for x in self.shapes]
            else:
                self.total = [x.to(dtype) for x in found]
            return
        sends = []
        if found is not None:
            message = pack([x.to(self.dtype) for x in found], self.dtype)
            sends = [Send(blocks.origin, message, _GRADIENTS)]
        sender = (transport.rank + step) % transport.size
        receives = []
        if blocks.is_seen_by(sender, transport.rank):
            receives = [Receive(sender, self.shapes, self.like, _GRADIENTS)]
        self.passing = (transport.start(sends, receives), receives)

    def finish(self) -> list[Tensor]:
        """The sums, in fp32 (fp64 for fp64)."""
        self._take_in()
        return self.total

    def _take_in(self) -> None:
        if self.passing is None:
            return
        pending, receives = self.passing
        pending.wait()
        for receive in receives:
            pairs = zip(self.total, receive.tensors, strict=True)
            self.total = [total + part for total, part in pairs]
        self.passing = None
