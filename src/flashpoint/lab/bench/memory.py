"""Peak extra memory of one call: the high-water mark less what was there before.

On the CPU that of resident memory, in a fresh process, where nothing freed earlier can be reused
unseen (Linux only); on a GPU that of PyTorch's allocator. Besides, the bytes that forward keeps
for backward.
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
from torch import Tensor

from flashpoint.lab.bench.calls import make_inputs, prepare
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.provider import Provider
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.lab.bench.timing import Call

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


def measure_on_cpu(provider: str, cases: Sequence[Case], threads: int) -> list[Peak]:
    """Peaks of one provider on several cases, all in one fresh process.

    A forward case gives the peak of forward; a backward or training case that of backward alone,
    over what forward has left behind.
    """
    return measure_in_child([partial(prepare_case, provider, case, threads) for case in cases])


def measure_on_cuda(provider: str, case: Case) -> Peak:
    """The same of one case on the GPU; the provider has been warmed."""
    try:
        return peak_on_cuda(_pending_call(PROVIDERS[provider], case))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return Peak(None, "the GPU has too little memory")


def peak_on_cuda(call: Call) -> Peak:
    """What a call takes of the GPU's memory over what is there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return Peak(torch.cuda.max_memory_allocated() - before)


def measure_kept(provider: str, case: Case) -> int | None:
    """Bytes of the distinct storages that forward saves for backward; None of a forward case."""
    if case.mode == "forward":
        return None
    forward = prepare(PROVIDERS[provider], case, make_inputs(case)).forward
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    del output  # held until here, so that no storage was freed and its address used again
    return sum(storages.values())


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
    """Warm the provider on a short length, then make ready what is to be measured."""
    torch.set_num_threads(threads)
    shape = case.shape
    queries = None if shape.queries is None else min(_WARM_LENGTH, shape.queries)
    small = replace(shape, length=min(_WARM_LENGTH, shape.length), queries=queries)
    _pending_call(PROVIDERS[provider], replace(case, shape=small))()
    return _pending_call(PROVIDERS[provider], case)


def _pending_call(provider: Provider, case: Case) -> Call:
    """Forward, or backward of a forward that is done."""
    forward, leaves, do = prepare(provider, case, make_inputs(case))
    if case.mode not in ("backward", "training"):
        return forward
    output = forward()
    return lambda: torch.autograd.grad(output, leaves, do)


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
