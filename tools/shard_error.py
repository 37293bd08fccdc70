"""How exact are sums over many shards in bf16: ours beside a softmax ring that merges statistics.

Run it from the repository: ``python tools/shard_error.py``. It prints a table for docs/log.md.

One process makes the parts of all ranks, ours by the library's own ``Partial`` and
``PartialGradients``. o and dq add up parts by keys, as ``reduce`` does; dk and dv add up parts by
queries, as the owner in a ring does. Each part is rounded to bf16, as it is sent, and added to
what is kept, in fp32. Errors are the largest difference to fp64 over the largest value, in
epsilons of bf16 (2**-7).
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from docs_numbers.tables import table
from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.division import divide, undivide
from flashpoint.distributed.layout import Range, Shards
from flashpoint.distributed.partial import Partial, PartialGradients
from flashpoint.distributed.request import read_request
from flashpoint.ops.api import attention

TOKENS, HEADS, WIDTH = 4096, 1, 64
SHARDS = (1, 4, 16, 64)
DRAWS = 3
BF16 = torch.bfloat16
ATTENTIONS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    "relu2": {"activation": "relu2"},
    "relu4/sum": {"activation": "relu4", "normalize": "sum"},
    "softmax ring": {},
}


class Inputs(NamedTuple):
    """q, k, v and the gradient of o, alike in shape."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor

    @classmethod
    def draw(cls, seed: int, tokens: int) -> "Inputs":
        """Normal numbers in bf16."""
        generator = torch.Generator().manual_seed(seed)
        return cls(*torch.randn(4, 1, HEADS, tokens, WIDTH, generator=generator).to(BF16))


Results = Mapping[str, Tensor]
"""o, dq, dk and dv."""


def _add(parts: Iterable[Tensor], kept: torch.dtype) -> Tensor:
    """A sum, each part of which is rounded to bf16 first."""
    total, *rest = (part.to(BF16).to(kept) for part in parts)
    for part in rest:
        total = total + part
    return total


def add_shards(
    name: str, inputs: Inputs, num_shards: int, kept: torch.dtype = torch.float32
) -> Results:
    """Those of an attention of ours, from parts by keys and by queries."""
    request = read_request(inputs[:3], ATTENTIONS[name])
    shards = Shards.split(inputs.q.shape[2], num_shards, "contiguous")
    has_sums = request.terms.normalize == "sum"
    transport: Any = SimpleNamespace(rank=0, size=num_shards)
    how = (request.terms, None, request.impl, has_sums, False, transport)
    call = ShardedCall(shards, shards, 0, request.sizes, *how)
    o, sums = _outputs(call, inputs, kept)
    dq = _add(_query_parts(call, inputs, o, sums), kept)
    pairs = [_key_parts(call, inputs, rank) for rank in range(num_shards)]
    dk, dv = (_add(parts, kept) for parts in zip(*pairs, strict=True))
    return {"o": o, "dq": dq.to(BF16), "dk": dk.to(BF16), "dv": dv.to(BF16)}


def _shards_of(
    call: ShardedCall, inputs: Inputs
) -> Iterator[tuple[Tensor, Tensor, Sequence[Range]]]:
    """k, v and places of each shard of keys."""
    for rank, held in enumerate(call.keys.ranges):
        yield call.keys.take(inputs.k, rank), call.keys.take(inputs.v, rank), held


def _outputs(call: ShardedCall, inputs: Inputs, kept: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """o and rows' sums from the keys' parts; sums travel in fp32."""
    queries, parts = [(0, call.queries.total)], list[Partial]()
    for shard in _shards_of(call, inputs):
        part = Partial(call, inputs.q, queries)
        part.add(*shard)
        parts.append(part)
    numerators = _add((part.numerators for part in parts), kept)
    sums = [part.sums for part in parts if part.sums is not None]
    total = torch.stack(sums).sum(0) if sums else None
    return divide(call, queries, numerators, total, BF16), total


def _query_parts(
    call: ShardedCall, inputs: Inputs, o: Tensor, sums: Tensor | None
) -> Iterable[Tensor]:
    """What each shard of keys adds to dq; gradients of numerators travel in bf16."""
    queries = [(0, call.queries.total)]
    grads = undivide(call, queries, inputs.do, None, o, sums, BF16)
    for shard in _shards_of(call, inputs):
        part = PartialGradients(call, inputs.q, queries, grads)
        part.add(*shard)
        yield part.dq


def _key_parts(call: ShardedCall, inputs: Inputs, rank: int) -> tuple[Tensor, Tensor]:
    """What a shard of queries adds to dk and dv."""
    queries, keys = call.queries.ranges[rank], [(0, call.keys.total)]
    q, do = (call.queries.take(x, rank) for x in (inputs.q, inputs.do))
    forward = Partial(call, q, queries)
    forward.add(inputs.k, inputs.v, keys)
    o = divide(call, queries, forward.numerators, forward.sums, BF16)
    grads = undivide(call, queries, do, None, o, forward.sums, torch.float32)
    return PartialGradients(call, q, queries, grads).add(inputs.k, inputs.v, keys)


def merge_shards(inputs: Inputs, num_shards: int, kept: torch.dtype = torch.float32) -> Results:
    """Softmax's: outputs over shards merged by log-sum-exps, gradients added up as ours are."""
    q, k, v, do = (x.float() for x in inputs)
    scores = q @ k.mT * WIDTH**-0.5
    o, lse = _merge_outputs(scores, v, num_shards, kept)
    weights = (scores - lse).exp()
    delta = (do * o.float()).sum(-1, keepdim=True)
    slopes = weights * (do @ v.mT - delta) * WIDTH**-0.5
    cut = partial(torch.chunk, chunks=num_shards)
    by_keys = zip(cut(slopes, dim=3), cut(k, dim=2), strict=True)
    by_queries = list(zip(*(cut(x, dim=2) for x in (slopes, weights, q, do)), strict=True))
    dq = _add((ds @ keys for ds, keys in by_keys), kept)
    dk = _add((ds.mT @ rows for ds, _, rows, _ in by_queries), kept)
    dv = _add((w.mT @ rows for _, w, _, rows in by_queries), kept)
    return {"o": o, "dq": dq.to(BF16), "dk": dk.to(BF16), "dv": dv.to(BF16)}


def _merge_outputs(
    scores: Tensor, v: Tensor, num_shards: int, kept: torch.dtype
) -> tuple[Tensor, Tensor]:
    """o and lse so far, and those of the next: o <- o - sigmoid(lse' - lse) (o - o')."""
    o = torch.zeros_like(v, dtype=kept)
    lse = torch.full_like(scores[..., :1], -math.inf)
    for of_keys, values in zip(scores.chunk(num_shards, 3), v.chunk(num_shards, 2), strict=True):
        part, part_lse = (of_keys.softmax(-1) @ values).to(BF16), of_keys.logsumexp(-1, True)
        share = torch.sigmoid(part_lse - lse)
        o = (o.float() - share * (o.float() - part.float())).to(kept)
        lse = torch.logaddexp(lse, part_lse)
    return o.to(BF16), lse


def exact_results(name: str, inputs: Inputs) -> Results:
    """The same in fp64 by one call."""
    q, k, v = (x.double().requires_grad_() for x in inputs[:3])
    if ATTENTIONS[name]:
        o = attention(q, k, v, **ATTENTIONS[name], impl="reference")
    else:
        o = (q @ k.mT * WIDTH**-0.5).softmax(-1) @ v
    grads = torch.autograd.grad(o, (q, k, v), inputs.do.double())
    return {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), grads, strict=True))}


def errors_of(
    name: str, inputs: Inputs, num_shards: int, exact: Results, kept: torch.dtype = torch.float32
) -> dict[str, float]:
    """The largest of each result, in epsilons of bf16 of the largest value."""
    run = partial(add_shards, name) if ATTENTIONS[name] else merge_shards
    return {
        result: ((x.double() - exact[result]).abs().max() / exact[result].abs().max()).item()
        / torch.finfo(BF16).eps
        for result, x in run(inputs, num_shards, kept=kept).items()
    }


def main() -> None:
    """Print the table."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for seed in range(DRAWS):
        inputs = Inputs.draw(seed, TOKENS)
        for name in ATTENTIONS:
            exact = exact_results(name, inputs)
            for word, kept in (("", torch.float32), (", kept in bf16", BF16)):
                for num_shards in SHARDS:
                    errors = errors_of(name, inputs, num_shards, exact, kept)
                    most = found.setdefault((name + word, num_shards), errors)
                    most |= {x: max(most[x], error) for x, error in errors.items()}
    lines = [[*key, *(f"{x:.2f}" for x in errors.values())] for key, errors in found.items()]
    sys.stdout.write(table(["attention", "shards", "o", "dq", "dk", "dv"], lines) + "\n")


if __name__ == "__main__":
    main()
