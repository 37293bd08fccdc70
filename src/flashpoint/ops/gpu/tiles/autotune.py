"""Tiles by measurement, where it is asked for: ``FLASHPOINT_AUTOTUNE=1`` or ``flashpoint tune``.

The variable is read at the first call of each shape. Where nothing is stored for its kind, a
handful of candidates run on the call's own tensors; the fastest is taken and stored, and later
processes use it without the variable. A call that is being captured in a CUDA graph never tunes.
"""

import functools
import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton.testing

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import Gpu, gpu_of
from flashpoint.ops.gpu.replay import NO_ROLES, Recorder, Role, run_once
from flashpoint.ops.gpu.tiles import stored
from flashpoint.ops.gpu.tiles.table import (
    Kind,
    Tiles,
    avoid_trap,
    fits,
    launch_arguments,
    table_tiles,
    usual_tiles,
)
from flashpoint.ops.gpu.versions import launcher_form

Launch = Callable[[Recorder, dict[str, Any]], None]
Timer = Callable[[Callable[[], None]], float]

WARMUP_MS, REPEAT_MS = 10, 40
LEAST_GAIN = 0.02  # what other tiles must save to be taken; less is noise

_QUERIES_HELD = (
    Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3),
    Tiles(128, 64, 8, 2), Tiles(128, 128, 8, 3), Tiles(128, 128, 8, 2), Tiles(64, 32, 4, 2),
    Tiles(128, 32, 8, 2),
)
_CANDIDATES = {
    "forward": _QUERIES_HELD,
    "dq": _QUERIES_HELD,
    "dkdv": (
        Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 3), Tiles(64, 128, 8, 3),
        Tiles(64, 128, 8, 2), Tiles(32, 128, 8, 2), Tiles(128, 128, 8, 2), Tiles(32, 64, 8, 2),
    ),
    "decode": (
        Tiles(16, 64, 4, 4, 1), Tiles(16, 64, 4, 4, 2), Tiles(16, 64, 4, 4, 4),
        Tiles(16, 64, 4, 3, 2), Tiles(16, 128, 4, 3, 2), Tiles(16, 32, 4, 4, 2),
        Tiles(16, 64, 8, 4, 2),
    ),
}
_FP32_CANDIDATES = (
    Tiles(32, 32, 4, 2), Tiles(32, 32, 8, 2), Tiles(16, 32, 4, 2), Tiles(32, 16, 4, 2),
    Tiles(16, 16, 8, 2),
)


class Tuned(NamedTuple):
    """One kind of call: the tiles it would have taken and the fastest, with their times."""

    kind: Kind
    before: Tiles
    after: Tiles
    before_ms: float
    after_ms: float


@dataclass
class Session:
    """Inside of it every call is tuned, whatever is stored.

    Attributes:
        timer: milliseconds of a call.
        on_candidate: told of each candidate before it is measured.
        found: the results so far.
    """

    timer: Timer
    on_candidate: Callable[[Kind, Tiles], None] = lambda kind, tiles: None
    found: list[Tuned] = field(default_factory=list)


_session: Session | None = None
_tried: set[str] = set()  # kinds that this process has measured because of the variable


def bench_ms(work: Callable[[], None]) -> float:
    """The median time of a launch on the GPU, with cold caches."""
    return triton.testing.do_bench(
        work, warmup=WARMUP_MS, rep=REPEAT_MS, return_mode="median"
    )


@contextmanager
def session(timer: Timer = bench_ms, **options: Any) -> Generator[Session]:
    """Tune every kind of call that is made inside, once for each call that is not a replay."""
    global _session
    usual, _session = _session, Session(timer, **options)
    try:
        yield _session
    finally:
        _session = usual


def candidates(kind: Kind, gpu: Gpu) -> list[Tiles]:
    """What to measure: the tiles in use, those that ship, and others that fit."""
    is_fp32 = kind.dtype == torch.float32
    others = _FP32_CANDIDATES if is_fp32 else _CANDIDATES[kind.kernel]
    if kind.kernel == "decode":
        others = tuple(tiles._replace(block_m=kind.num_queries) for tiles in others)
    found = (usual_tiles(kind, gpu), table_tiles(kind, gpu))
    found += tuple(x for x in others if fits(kind, x, gpu))
    return list(dict.fromkeys(avoid_trap(kind, tiles, gpu) for tiles in found))


def autotuned(kernel: str, call: Call, launch: Launch) -> dict[str, Any] | None:
    """The fastest tiles for a call if it is to be tuned now, as its launch takes them."""
    active = _session or _session_of_environment(call)
    if active is None:
        return None
    kind, gpu = Kind.of(kernel, call), gpu_of(call.q.device)
    key = kind.key(gpu)
    if active is not _session:
        if key in _tried or stored.find(key) is not None:
            return None
        _tried.add(key)
    tuned = _tune(kind, gpu, call, launch, active)
    if tuned is None:
        return None
    active.found.append(tuned)
    stored.keep(key, {**tuned.after._asdict(), "ms": round(tuned.after_ms, 5)})
    return launch_arguments(tuned.after, kernel, call)


def _session_of_environment(call: Call) -> Session | None:
    """One for a call that the variable asks to tune, and that can be timed."""
    if os.environ.get("FLASHPOINT_AUTOTUNE") != "1" or not _is_timeable(call):
        return None
    return Session(bench_ms)


def _is_timeable(call: Call) -> bool:
    return call.q.is_cuda and not torch.cuda.is_current_stream_capturing()


def _tune(
    kind: Kind, gpu: Gpu, call: Call, launch: Launch, active: Session
) -> Tuned | None:
    """Measure the candidates; None where none of them runs."""
    times: dict[Tiles, float] = {}
    for tiles in candidates(kind, gpu):
        active.on_candidate(kind, tiles)
        rehearsal = Rehearsal(call.q)
        try:
            launch(rehearsal, launch_arguments(tiles, kind.kernel, call))
            times[tiles] = active.timer(rehearsal.repeat)
        except torch.OutOfMemoryError:
            raise  # that says nothing of the candidate
        except Exception:  # noqa: BLE001 (a candidate that does not compile or run is none)
            continue
    if not times:
        return None
    before, after = usual_tiles(kind, gpu), min(times, key=times.__getitem__)
    before_ms = times.get(before, math.inf)
    if times[after] > (1.0 - LEAST_GAIN) * before_ms:
        after = before
    return Tuned(kind, before, after, before_ms, times[after])


class Rehearsal(Recorder):
    """Launches that nobody remembers, to be repeated at little cost while they are timed.

    By Triton's own way a launch costs more than a small kernel.
    """

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__(like)
        self.is_repeatable = False
        self.steps: list[Callable[[], Any]] = []

    def launch(
        self,
        kernel: Any,
        num_programs: int,
        arguments: dict[str, Any],
        roles: Mapping[str, Role] = NO_ROLES,
    ) -> None:
        """Run a kernel, and keep how to run it again."""
        compiled = run_once(kernel, num_programs, arguments)
        if compiled is None or launcher_form() is None:  # interpreted, or not as we know it
            self.steps.append(functools.partial(run_once, kernel, num_programs, arguments))
            return
        values = [arguments[name] for name in kernel.arg_names]
        self.steps.append(functools.partial(compiled[(num_programs, 1, 1)], *values))

    def repeat(self) -> None:
        """All launches again."""
        for step in self.steps:
            step()
