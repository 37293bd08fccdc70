"""How exact are sums over many shards in bf16: ours beside a softmax ring that merges statistics.

Run it from the repository: ``python tools/shard_error.py``. It prints a table for docs/log.md.

All numbers are one process's: a shard's result is rounded where a rank would send it or keep it.
Errors are the largest difference to fp64 over the largest value, in epsilons of bf16 (2**-7).
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from docs_numbers.tables import table
from flashpoint.ops.api import attention

TOKENS, HEADS, WIDTH = 4096, 4, 64
SHARDS = (1, 4, 16, 64)
DRAWS = 3
BF16 = torch.bfloat16


def add_shards(
    q: Tensor, k: Tensor, v: Tensor, shards: int, kept: torch.dtype, activation: str
) -> Tensor:
    """Partial sums of each shard, rounded once to bf16, added up in ``kept`` and divided."""
    total = torch.zeros_like(q, dtype=kept)
    for keys, values in zip(k.chunk(shards, 2), v.chunk(shards, 2), strict=True):
        part = attention(q.float(), keys.float(), values.float(), activation=activation, length=1)
        total += part.to(BF16).to(kept)
    return (total.float() / k.shape[2]).to(BF16)


def merge_shards(q: Tensor, k: Tensor, v: Tensor, shards: int, kept: torch.dtype) -> Tensor:
    """Softmax over each shard, its output rounded to bf16, merged by log-sum-exps in fp32.

    o and lse so far, and those of the next: o <- o - sigmoid(lse' - lse) (o - o'), as rings do.
    """
    o = torch.zeros_like(q, dtype=kept)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float32).unsqueeze(-1)
    for keys, values in zip(k.chunk(shards, 2), v.chunk(shards, 2), strict=True):
        scores = q.float() @ keys.float().mT * WIDTH**-0.5
        part = (scores.softmax(-1) @ values.float()).to(BF16)
        part_lse = scores.logsumexp(-1, keepdim=True)
        share = torch.sigmoid(part_lse - lse)
        o = (o.float() - share * (o.float() - part.float())).to(kept)
        lse = torch.logaddexp(lse, part_lse)
    return o.to(BF16)


def exact_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention in fp64."""
    q, k, v = q.double(), k.double(), v.double()
    return (q @ k.mT * WIDTH**-0.5).softmax(-1) @ v


def exact_sums(q: Tensor, k: Tensor, v: Tensor, activation: str) -> Tensor:
    """Pointwise attention in fp64."""
    return attention(q.double(), k.double(), v.double(), activation=activation)


def error_of(got: Tensor, exact: Tensor) -> float:
    """The largest, in epsilons of bf16 of the largest value."""
    largest = (got.double() - exact).abs().max() / exact.abs().max()
    return largest.item() / torch.finfo(BF16).eps


def main() -> None:
    """Print the table."""
    ours = {
        f"{name}, sums kept in {word}": (name, dtype)
        for name, (word, dtype) in itertools.product(
            ("relu", "relu2"), {"fp32": torch.float32, "bf16": BF16}.items()
        )
    }
    rows: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
        row: (
            functools.partial(add_shards, kept=dtype, activation=name),
            functools.partial(exact_sums, activation=name),
        )
        for row, (name, dtype) in ours.items()
    }
    for word, dtype in (("fp32", torch.float32), ("bf16", BF16)):
        merged = functools.partial(merge_shards, kept=dtype)
        rows[f"softmax ring, output kept in {word}"] = (merged, exact_softmax)
    found: dict[str, dict[int, float]] = {row: dict.fromkeys(SHARDS, 0.0) for row in rows}
    for seed in range(DRAWS):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = torch.randn(3, 1, HEADS, TOKENS, WIDTH, generator=generator).to(BF16)
        q = q[:, :, :256]
        for row, (run, exact) in rows.items():
            truth = exact(q, k, v)
            for shards in SHARDS:
                error = error_of(run(q, k, v, shards=shards), truth)
                found[row][shards] = max(found[row][shards], error)
    lines = [[row, *(f"{errors[n]:.2f}" for n in SHARDS)] for row, errors in found.items()]
    sys.stdout.write(table(["", *(f"{n} shards" for n in SHARDS)], lines) + "\n")


if __name__ == "__main__":
    main()
