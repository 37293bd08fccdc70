"""fp32 on a CPU whose cores others use, too: our calls beside PyTorch's softmax attention.

    python benchmarks/neighbours.py --json benchmarks/results/neighbours/cpu.json
    python benchmarks/neighbours.py --activation gelu --json FILE
    python benchmarks/neighbours.py --scores mask --json FILE
    python benchmarks/neighbours.py --decoding --json FILE

About three minutes on two cores. Neighbours are processes that compute without a pause. Three
providers take turns: ours by the kernel in C++, ours by PyTorch's products, and SDPA. The ratios
are our time over SDPA's, under 1 is faster; the script exits with 1 where the kernel's is over 1.
"""

import multiprocessing
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import flashpoint
from flashpoint.lab.bench.environment import describe
from flashpoint.lab.bench.timing import Budget, CpuTimer, interleave, start
from flashpoint.lab.runs.writing import write_json
from flashpoint.ops.cpu.native import build, call

NEIGHBOURS = (0, 1, 2)
BUDGET = Budget(rounds=15, seconds=2.5)


class Shape(NamedTuple):
    """Of q, k and v in memory, [B, L, H, D]."""

    batch: int
    heads: int
    length: int
    dim: int


SHAPES = (
    Shape(1, 1, 64, 64),
    Shape(4, 8, 50, 64),
    Shape(8, 6, 197, 64),
    Shape(2, 8, 512, 32),
    Shape(1, 8, 1024, 64),
    Shape(1, 8, 1024, 128),
    Shape(1, 8, 4096, 64),
)


LONGEST_SCORES = 1024
"""With a bias of 8 heads longer calls take gigabytes in SDPA's backward."""


class Scores(StrEnum):
    """What scores meet, in our calls and in SDPA's alike."""

    NONE = "none"
    MASK = "mask"
    BIAS = "bias"


def spin() -> None:
    """Compute without a pause."""
    while True:
        pass


@contextmanager
def beside(count: int) -> Generator[None]:
    """So many neighbours, while this lasts."""
    processes = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def by_products(work: Callable[[], object]) -> object:
    """A call as it is where there is no compiler."""
    with patch.multiple(call, CLASSES={}, _plans={}):
        return work()


def tensors_of(scores: Scores, shape: Shape, generator: torch.Generator) -> dict[str, Tensor]:
    """Keys that are padding, [B, 1, 1, L], half of them at most; or a bias [1, H, L, L]."""
    if scores is Scores.MASK:
        smallest = shape.length // 2
        ends = torch.randint(smallest, shape.length + 1, (shape.batch, 1), generator=generator)
        return {"mask": (torch.arange(shape.length) < ends)[:, None, None]}
    if scores is Scores.BIAS:
        size = (1, shape.heads, shape.length, shape.length)
        return {"bias": torch.randn(size, generator=generator)}
    return {}


def calls_of(
    shape: Shape, mode: str, causal: bool, activation: str, scores: Scores, decoding: bool
) -> dict[str, Callable[[], object]]:
    """What each provider does in a sample; a bias has a gradient."""
    size = (shape.batch, shape.length, shape.heads, shape.dim)
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(size, generator=generator).transpose(1, 2) for _ in range(4))
    do = do.contiguous()
    if decoding:
        q = q[:, :, -1:]
    given = tensors_of(scores, shape, generator)
    leaves = [q, k, v, *(x for x in given.values() if x.is_floating_point())]
    if mode == "backward":
        for x in leaves:
            x.requires_grad_()
    (attn_mask,) = given.values() or (None,)
    attend: Mapping[str, Callable[..., Any]] = {
        "flashpoint": partial(flashpoint.attention, causal=causal, activation=activation, **given),
        "sdpa": partial(F.scaled_dot_product_attention, is_causal=causal, attn_mask=attn_mask),
    }
    work = {name: partial(function, q, k, v) for name, function in attend.items()}
    if mode == "backward":
        outputs = {name: function() for name, function in work.items()}
        work = {
            name: partial(torch.autograd.grad, o, leaves, do, retain_graph=True)
            for name, o in outputs.items()
        }
    return {**work, "products": partial(by_products, work["flashpoint"])}


def measure(
    shape: Shape,
    mode: str,
    causal: bool,
    neighbours: int,
    activation: str,
    scores: Scores,
    decoding: bool,
) -> dict[str, Any]:
    """One row: medians and the two ratios."""
    timer = CpuTimer()
    calls = calls_of(shape, mode, causal, activation, scores, decoding)
    started = {name: start(work, timer, compiles=True)[0] for name, work in calls.items()}
    times = interleave(started, BUDGET, timer)
    medians = {name: timing.median_s for name, timing in times.items()}
    return {
        **{"shape": shape._asdict(), "mode": mode, "causal": causal, "neighbours": neighbours},
        "times": {name: asdict(timing) for name, timing in times.items()},
        "ratio": medians["flashpoint"] / medians["sdpa"],
        "ratio_of_products": medians["products"] / medians["sdpa"],
    }


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    threads: Annotated[int, typer.Option(help="That PyTorch uses.")] = 2,
    activation: Annotated[str, typer.Option(help="What stands in softmax's place.")] = "relu",
    scores: Annotated[Scores, typer.Option(help="What they meet, if anything.")] = Scores.NONE,
    decoding: Annotated[bool, typer.Option("--decoding", help="One query, forward.")] = False,
) -> None:
    """Measure all rows and write one file."""
    if activation not in build.CLASSES:
        raise typer.BadParameter(f"the kernel serves {', '.join(build.CLASSES)}.")
    obstacle = build.why_not(activation)
    if obstacle is not None:
        raise typer.BadParameter(f"there is no kernel in C++ to measure: {obstacle}")
    torch.set_num_threads(threads)
    record: dict[str, Any] = {"environment": asdict(describe("cpu")), "activation": activation}
    record["scores"], record["decoding"], record["rows"] = scores.value, decoding, []
    is_plain = scores is Scores.NONE
    shapes = [x for x in SHAPES if is_plain or x.length <= LONGEST_SCORES]
    kinds = (("forward", False), ("backward", False), ("forward", True))
    if decoding:
        kinds = kinds[:1]
    elif not is_plain:  # SDPA takes no mask beside causality
        kinds = kinds[:2]
    for neighbours in NEIGHBOURS:
        with beside(neighbours):
            for shape in shapes:
                for mode, causal in kinds:
                    row = measure(shape, mode, causal, neighbours, activation, scores, decoding)
                    record["rows"].append(row)
                    write_json(json, record)
                    sizes = ", ".join(map(str, shape))
                    words = f"{neighbours} neighbours, ({sizes}), {mode}{', causal' * causal}"
                    ratios = f"{row['ratio']:.2f} (products {row['ratio_of_products']:.2f})"
                    typer.echo(f"{words}: {ratios}")
    missed = [row for row in record["rows"] if row["ratio"] > 1.0]
    typer.echo(f"{len(record['rows']) - len(missed)} of {len(record['rows'])} are no slower")
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
