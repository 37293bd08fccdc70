"""Peak extra memory of one call: the high-water mark of resident memory less what was there.

Measured in a fresh process, where nothing freed earlier can be reused unseen. Linux only.
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import torch

from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.providers import PROVIDERS, Provider, make_forward, make_inputs
from flashpoint.bench.timing import Call

Prepare: TypeAlias = Callable[[], Call]
"""Picklable; warms what the call needs, makes its inputs and returns it."""

_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 64 * 1024
_WARM_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes, or the reason why there is no number."""

    extra_bytes: int | None
    reason: str | None = None


def measure_case(provider: str, cases: Sequence[Case], threads: int) -> list[Peak]:
    """Peaks of one provider on several cases, all in one fresh process.

    A forward case gives the peak of forward; a training case that of backward alone, over what
    forward has left behind.
    """
    return measure_in_child([partial(prepare_case, provider, case, threads) for case in cases])


def measure_in_child(prepares: Sequence[Prepare]) -> list[Peak]:
    """Peaks of the prepared calls, one after the other in one fresh process."""
    if not sys.platform.startswith("linux"):
        return [Peak(None, f"measured on Linux only, this is {sys.platform}")] * len(prepares)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_measure_all, prepares).result()
    except BrokenProcessPool:
        return [Peak(None, "the measuring process died, perhaps of too little memory")] * len(
            prepares
        )


def prepare_case(provider: str, case: Case, threads: int) -> Call:
    """Warm the provider on a short length, then make ready what ``measure_case`` measures."""
    torch.set_num_threads(threads)
    length = min(_WARM_LENGTH, case.shape.length)
    small = Shape(case.shape.batch, case.shape.heads, length, case.shape.dim)
    _pending_call(PROVIDERS[provider], replace(case, shape=small))()
    return _pending_call(PROVIDERS[provider], case)


def _pending_call(provider: Provider, case: Case) -> Call:
    """Forward, or backward of a forward that is done."""
    inputs = make_inputs(case)
    forward = make_forward(provider, case, inputs)
    if case.mode != "training":
        return forward
    output, leaves = forward(), (inputs.q, inputs.k, inputs.v)
    return lambda: torch.autograd.grad(output, leaves, inputs.do)


def _measure_all(prepares: Sequence[Prepare]) -> list[Peak]:
    """Measure in this process, which has to be a fresh one."""
    _return_freed_memory_at_once()
    return [_measure(prepare) for prepare in prepares]


def _measure(prepare: Prepare) -> Peak:
    """Reset the high-water mark, call, read it."""
    call = prepare()
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        return Peak(None, f"the high-water mark cannot be reset: {error.strerror}")
    before = _status_bytes("VmRSS")
    call()
    return Peak(max(0, _status_bytes("VmHWM") - before))


def _return_freed_memory_at_once() -> None:
    """Fix glibc's threshold for mapped blocks, which otherwise grows and keeps freed memory."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def _status_bytes(field: str) -> int:
    """One of the sizes that Linux lists in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
