"""What one GPU can show of attention over several: strategies, chunks, overlap, 1M tokens.

    python benchmarks/sequence.py --json benchmarks/results/sequence/h200.json

About 100 seconds on an H200, many of them for compiling. Nothing else may run on the GPU.
- chunks: 64k tokens, keys in 8 chunks added up as a ring does, over one call. At most 1.05, timed
  one by one and in a row.
- overlap: a block of keys is computed on one stream while the next is copied on another.
- long: forward and backward of 1,048,576 tokens, time and peak memory, some rows against fp64.
- strategies: each of them by NCCL with one rank, results and gradients against fp64, beside those
  of one call. At most twice its errors and an epsilon of bf16.
Errors are the largest difference over the largest value. Every part is written as it ends; one
that fails says why, and the script exits with 1, as it does where a limit is missed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
import typer
from torch import Tensor

import flashpoint
from flashpoint.distributed import sequence_parallel
from flashpoint.distributed.call import ShardedCall, Sizes
from flashpoint.distributed.division import divide, undivide
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.partial import Partial, PartialGradients
from flashpoint.distributed.strategy import STRATEGIES
from flashpoint.distributed.transport import Transport
from flashpoint.lab.bench.cuda_timing import CudaTimer
from flashpoint.lab.bench.environment import describe
from flashpoint.lab.bench.timing import Budget, Timer, Timing, interleave, start
from flashpoint.lab.runs.writing import write_json
from flashpoint.ops import implementations
from flashpoint.ops.spec import Terms

HEADS, DTYPE = 8, torch.bfloat16
MOST_ERROR, MOST_RATIO = 1e-2, 1.05
IN_A_ROW = 5
"""Calls between two events, where launches and clocks have settled."""
BUDGET = Budget(rounds=21, seconds=3.0)
NAMES = ("o", "dq", "dk", "dv")
CALLS: Mapping[str, Mapping[str, Any]] = {
    "relu": {"activation": "relu"},
    "relu4/sum": {"activation": "relu4", "normalize": "sum"},
}


class Inputs(NamedTuple):
    """Of one call, [1, H, L, D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor

    @classmethod
    def draw(cls, device: str, length: int, dim: int) -> "Inputs":
        """The same numbers every time."""
        generator = torch.Generator(device).manual_seed(0)
        size = (1, HEADS, length, dim)
        made = [torch.randn(size, device=device, generator=generator) for _ in range(4)]
        return cls(*(x.to(DTYPE) for x in made))

    def evaluate(self, attend: Callable[..., Tensor], **options: Any) -> list[Tensor]:
        """o, dq, dk and dv."""
        leaves = [x.detach().requires_grad_() for x in self[:3]]
        o = attend(*leaves, **options)
        return [o.detach(), *torch.autograd.grad(o, leaves, self.do)]


def largest_errors(found: Sequence[Tensor], right: Sequence[Tensor]) -> dict[str, float]:
    """Of o and the gradients, over the largest value of each."""
    pairs = zip(NAMES, found, right, strict=True)
    return {name: float((x - y).abs().max() / y.abs().max()) for name, x, y in pairs}


def run_strategies(device: str, length: int, dim: int) -> list[dict[str, Any]]:
    """Each strategy over the ranks there are, one, beside one call."""
    inputs = Inputs.draw(device, length, dim)
    exact = Inputs(*(x.double() for x in inputs))
    rows: list[dict[str, Any]] = []
    for name, call in CALLS.items():
        for causal in (False, True):
            options = {**call, "causal": causal}
            right = exact.evaluate(flashpoint.attention, **options, impl="reference")
            alone = largest_errors(inputs.evaluate(flashpoint.attention, **options), right)
            limits = {x: 2 * error + torch.finfo(DTYPE).eps for x, error in alone.items()}
            for strategy in STRATEGIES:
                attend = sequence_parallel(strategy=strategy)
                errors = largest_errors(inputs.evaluate(attend, **options), right)
                row = {"strategy": strategy, "attention": name, "causal": causal}
                row |= {"length": length, "dim": dim, "errors": errors}
                rows.append({**row, "errors_of_one_call": alone, "limits": limits})
    return rows


class Chunks:
    """A call whose keys come in chunks, added up as a ring does.

    Args:
        inputs: of the whole call.
        num_chunks: that the keys are cut into.
    """

    def __init__(self, inputs: Inputs, num_chunks: int) -> None:
        self.inputs = inputs
        _, heads, length, dim = inputs.q.shape
        keys = Shards.split(length, num_chunks, "contiguous")
        self.chunks = [
            (*(keys.take(x, i).contiguous() for x in (inputs.k, inputs.v)), keys.ranges[i])
            for i in range(num_chunks)
        ]
        group = dist.group.WORLD
        assert group is not None
        terms = Terms()
        self.call = ShardedCall(
            Shards.split(length, 1, "contiguous"),
            keys,
            0,
            Sizes(1, heads, heads, dim, dim),
            terms,
            None,
            implementations.choose("auto", inputs.q, inputs.v, terms.activation),
            False,
            False,
            Transport(group, "chunks"),
        )
        self.queries = self.call.queries.ranges[0]

    def attend(self) -> Tensor:
        """The result."""
        found = Partial(self.call, self.inputs.q, self.queries, more=len(self.chunks) > 1)
        for k, v, keys in self.chunks:
            found.add(k, v, keys)
        return divide(self.call, self.queries, found.numerators, found.sums, DTYPE)

    def differentiate(self) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """dq, then dk and dv of each chunk, which go back to whom the keys came from."""
        q, do = self.inputs.q, self.inputs.do
        grads = undivide(self.call, self.queries, do, None, None, None, q.dtype)
        more = len(self.chunks) > 1
        found = PartialGradients(self.call, q, self.queries, grads, more=more)
        parts = [found.add(k, v, keys) for k, v, keys in self.chunks]
        return found.dq.to(DTYPE), parts

    def evaluate(self) -> list[Tensor]:
        """o, dq, dk and dv, whole."""
        dq, parts = self.differentiate()
        dk, dv = (torch.cat(each, dim=2).to(DTYPE) for each in zip(*parts, strict=True))
        return [self.attend(), dq, dk, dv]


def compare_chunks(
    device: str, timer: Timer, length: int, dims: Sequence[int], num_chunks: int = 8
) -> list[dict[str, Any]]:
    """Times of one call and of keys in chunks, forward and backward, in turns."""
    rows: list[dict[str, Any]] = []
    for dim in dims:
        inputs = Inputs.draw(device, length, dim)
        chunks = Chunks(inputs, num_chunks)
        right = inputs.evaluate(flashpoint.attention)
        errors = largest_errors(chunks.evaluate(), right)
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        o = flashpoint.attention(*leaves)
        whole = torch.no_grad()(partial(flashpoint.attention, *inputs[:3]))
        back = partial(torch.autograd.grad, o, leaves, inputs.do, retain_graph=True)
        pairs = {
            "forward": {"one call": whole, "chunks": chunks.attend},
            "backward": {"one call": back, "chunks": chunks.differentiate},
        }
        for mode, calls in pairs.items():
            row = {"mode": mode, "length": length, "dim": dim, "chunks": num_chunks}
            rows.append({**row, **_time_both_ways(calls, timer), "errors": errors})
    return rows


def _time_both_ways(calls: Mapping[str, Callable[[], object]], timer: Timer) -> dict[str, Any]:
    """Chunks over one call: each call by itself, then several in a row."""
    alone = time_in_turns(calls, timer)
    rows = time_in_turns({name: partial(_repeat, call) for name, call in calls.items()}, timer)
    return {
        "ratio": _chunks_over_one_call(alone),
        "times": as_data(alone),
        "in_a_row": _chunks_over_one_call(rows),
        "calls_in_a_row": IN_A_ROW,
        "times_of_rows": as_data(rows),
    }


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(IN_A_ROW):
        call()


def _chunks_over_one_call(times: Mapping[str, Timing]) -> float:
    return times["chunks"].median_s / times["one call"].median_s


def time_in_turns(calls: Mapping[str, Callable[[], object]], timer: Timer) -> dict[str, Timing]:
    """Interleaved rounds of calls that have been made ready."""
    started = {name: start(call, timer, compiles=True)[0] for name, call in calls.items()}
    return interleave(started, BUDGET, timer)


def as_data(times: Mapping[str, Timing]) -> dict[str, Any]:
    """For a JSON file."""
    return {name: asdict(timing) for name, timing in times.items()}


def hidden_share(compute_s: float, copy_s: float, both_s: float) -> float:
    """Of the shorter one, how much passes meanwhile: 1 is all of it, 0 is one after another."""
    return (compute_s + copy_s - both_s) / min(compute_s, copy_s)


def overlap(timer: Timer, lengths: Sequence[int], dim: int) -> list[dict[str, Any]]:
    """A rank's block of keys computed while the next one comes, from the host or the GPU."""
    rows: list[dict[str, Any]] = []
    side = torch.cuda.Stream()
    for length in lengths:
        chunks = Chunks(Inputs.draw("cuda", length, dim), 1)
        found = Partial(chunks.call, chunks.inputs.q, chunks.queries)
        ((k, v, keys),) = chunks.chunks
        block = torch.stack((k, v))
        for source in (block.cpu().pin_memory(), block.clone()):
            calls = _both(partial(found.add, k, v, keys), block, source, side)
            times = time_in_turns(calls, timer)
            row: dict[str, Any] = {"from": source.device.type, "length": length, "dim": dim}
            row["copied_bytes"] = source.nbytes
            row["hidden"] = hidden_share(*(timing.median_s for timing in times.values()))
            rows.append({**row, "times": as_data(times)})
    return rows


def _both(
    compute: Callable[[], object], block: Tensor, source: Tensor, side: torch.cuda.Stream
) -> dict[str, Callable[[], object]]:
    """Computing, copying, and both at once, as what one stream waits for."""
    coming = torch.empty_like(block)

    def copy() -> None:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            coming.copy_(source, non_blocking=True)

    def copy_alone() -> None:
        copy()
        torch.cuda.current_stream().wait_stream(side)

    def both() -> None:
        copy()
        compute()
        torch.cuda.current_stream().wait_stream(side)

    return {"compute": compute, "copy": copy_alone, "both": both}


def run_long(device: str, timer: Timer, length: int, dim: int) -> dict[str, Any]:
    """One forward and one backward, in seconds, with the peak of memory, all tensors included."""
    inputs = Inputs.draw(device, length, dim)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    made: list[Tensor] = []
    forward_s = timer.seconds_of(lambda: made.append(flashpoint.attention(*leaves)))
    (o,) = made
    grads: list[Tensor] = []
    backward_s = timer.seconds_of(lambda: grads.extend(torch.autograd.grad(o, leaves, inputs.do)))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    flops = 4 * HEADS * length**2 * dim
    return {
        "length": length,
        "dim": dim,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "forward_flops_per_s": flops / forward_s,
        "backward_flops_per_s": 2.5 * flops / backward_s,
        "input_bytes": sum(x.nbytes for x in inputs),
        "peak_bytes": peak,
        "errors": _errors_of_some(inputs, [o.detach(), *grads]),
    }


def _errors_of_some(inputs: Inputs, found: Sequence[Tensor], some: int = 4) -> dict[str, float]:
    """Those of the last queries' o and dq and of the last keys' dk and dv, against fp64."""
    q, k, v, do = (x.double() for x in inputs)
    options: dict[str, Any] = {"length": inputs.k.shape[2], "impl": "reference"}
    last = slice(-some, None)
    rows = Inputs(q[:, :, last], k, v, do[:, :, last]).evaluate(flashpoint.attention, **options)
    columns = Inputs(q, k[:, :, last], v[:, :, last], do)
    right = rows[:2] + columns.evaluate(flashpoint.attention, **options)[2:]
    return largest_errors([x[:, :, last].double() for x in found], right)


def problems_of(record: Mapping[str, Any]) -> list[str]:
    """What failed, and which limits are missed, a line each."""
    said = [f"{part}: {why}" for part, why in record["failed"].items()]
    parts = (record.get("strategies", []), record.get("chunks", []), record.get("long", []))
    for row in (row for rows in parts for row in rows):
        where = ", ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, str | int))
        for name, error in row["errors"].items():
            most = row.get("limits", {}).get(name, MOST_ERROR)
            if not error <= most:  # NaN is none
                said.append(f"{where}: error of {name} {error:.1e}, at most {most:.1e}")
        for name in ("ratio", "in_a_row"):
            if not row.get(name, 0.0) <= MOST_RATIO:
                words = name.replace("_", " ")
                said.append(f"{where}: {words} {row[name]:.3f}, at most {MOST_RATIO:g}")
    return said


@contextmanager
def one_rank(backend: str) -> Iterator[None]:
    """A group of this process alone."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def measure(
    parts: Mapping[str, Callable[[], Any]], write: Callable[[Any], None]
) -> dict[str, Any]:
    """What each part gives, written as it ends; a part that fails leaves its reason."""
    record: dict[str, Any] = {"failed": {}, "seconds": {}}
    for name, run in parts.items():
        begin = time.perf_counter()
        try:
            record[name] = run()
        except RuntimeError as error:
            record["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
        record["seconds"][name] = round(time.perf_counter() - begin, 1)
        write(record)
        typer.echo(f"{name}: {record['seconds'][name]} s")
    return record


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
) -> None:
    """Measure all parts and write one file."""
    if not torch.cuda.is_available():
        raise typer.BadParameter("sequences are timed on a GPU, and there is none here")
    head = {
        "environment": asdict(describe("cuda")),
        "settings": {
            **{"batch": 1, "heads": HEADS, "dtype": "bf16", "backend": "nccl, one rank"},
            **{"most_ratio": MOST_RATIO, "most_error": MOST_ERROR},
        },
    }
    with one_rank("nccl"), torch.cuda.stream(torch.cuda.Stream()):
        timer = CudaTimer()
        parts = {
            "chunks": partial(compare_chunks, "cuda", timer, 65536, (64, 128)),
            "overlap": partial(overlap, timer, (8192, 16384, 65536), 64),
            "long": lambda: [run_long("cuda", timer, 1048576, 64)],
            "strategies": partial(run_strategies, "cuda", 4096, 64),
        }
        record = measure(parts, lambda found: write_json(json, {**head, **found}))
    problems = problems_of(record)
    for problem in problems:
        typer.echo(f"missed: {problem}", err=True)
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
