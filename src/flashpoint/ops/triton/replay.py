"""Kernel launches that are remembered: a second call like the first differs in addresses only.

Triton looks at some fifty arguments a launch, and we compute most of them: 150 us, as much as a
small attention takes on the GPU. A call with the same shapes, strides and terms is replayed from
what the first one recorded, at half of that.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.ops.implementations import INTERPRETED

MOST_RECORDINGS = 1024  # then all are forgotten: shapes that never come back


def only(kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a kernel takes."""
    return {name: arguments[name] for name in kernel.arg_names if name in arguments}


class Described(NamedTuple):
    """What a launch reads of a tensor descriptor."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    padding: str = "zero"


class Launch(NamedTuple):
    """One launch: a compiled kernel, its grid and arguments, and where the tensors go in these."""

    compiled: Any
    grid: tuple[int, int, int]
    arguments: list[Any]
    tensors: list[tuple[int, str]]
    described: list[tuple[int, str, list[int], list[int]]]

    def run(self, tensors: dict[str, Tensor | None]) -> None:
        """Launch again with other tensors of the same kind."""
        arguments = self.arguments.copy()
        for at, name in self.tensors:
            arguments[at] = tensors[name]
        for at, name, shape, strides in self.described:
            base = tensors[name]
            assert base is not None
            arguments[at] = Described(base, shape, strides)
        self.compiled[self.grid](*arguments)


class Recorder:
    """Makes outputs and launches kernels for a first call, and remembers both for later ones.

    Kernels name their arguments alike, so that a name tells which tensor goes where.
    """

    def __init__(self, like: Tensor) -> None:
        self.like: Tensor | None = like
        self.buffers: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self.parts: dict[str, tuple[str, ...]] = {}
        self.renamed: dict[str, str] = {}
        self.launches: list[Launch] = []
        self.is_repeatable = like.is_cuda and not INTERPRETED

    def empty(self, name: str, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        """A tensor that kernels write, made anew for every call."""
        assert self.like is not None
        self.buffers[name] = (tuple(shape), dtype)
        return self.like.new_empty(self.buffers[name][0], dtype=dtype)

    def name_parts(self, name: str, parts: tuple[str, ...]) -> None:
        """Tell that kernels know the parts of [B, L, parts, H, D] by names of their own."""
        self.parts[name] = parts

    def rename(self, names: dict[str, str]) -> None:
        """Tell that kernels from now on mean other tensors by these names."""
        self.renamed |= names

    def launch(self, kernel: Any, num_programs: int, arguments: dict[str, Any]) -> None:
        """Run a kernel by Triton's own way."""
        compiled = kernel[(num_programs,)](**arguments)
        if not self.is_repeatable:
            return
        if arguments.get("normalizers") is not None:  # computed from values that change
            self.is_repeatable = False
            return
        values = [arguments[name] for name in kernel.arg_names]
        tensors, described = [], []
        for at, (name, value) in enumerate(zip(kernel.arg_names, values, strict=True)):
            name = self.renamed.get(name, name)
            if isinstance(value, Tensor):
                tensors.append((at, name))
                values[at] = None
            elif hasattr(value, "block_shape"):  # a descriptor, Triton's or Gluon's
                described.append((at, name, value.shape, value.strides))
                values[at] = None
        grid = (num_programs, 1, 1)
        self.launches.append(Launch(compiled, grid, values, tensors, described))

    def replay(self, inputs: dict[str, Tensor | None], like: Tensor) -> dict[str, Tensor | None]:
        """All launches again on other inputs; gives them and the outputs by name."""
        tensors = dict(inputs)
        for name, (shape, dtype) in self.buffers.items():
            tensors[name] = like.new_empty(shape, dtype=dtype)
        for name, parts in self.parts.items():
            whole = tensors[name]
            assert whole is not None
            tensors.update(zip(parts, whole.unbind(2), strict=True))
        for launch in self.launches:
            launch.run(tensors)
        return tensors


_recordings: dict[Any, Recorder] = {}


def run_recorded(
    name: str,
    inputs: dict[str, Tensor | None],
    options: tuple[Any, ...],
    outputs: tuple[str, ...],
    first_call: Callable[[Recorder], list[Tensor]],
) -> list[Tensor]:
    """The outputs of a call: replayed if one like it was recorded, else by ``first_call``.

    Args:
        name: of what is computed.
        inputs: tensors by the names that kernels give them; the first is always there.
        options: everything else that the result depends on.
        outputs: names of the tensors to return, in order.
        first_call: makes and launches by a recorder.
    """
    like = next(iter(inputs.values()))
    assert like is not None
    if like.is_cuda and like.device.index != torch.cuda.current_device():
        with torch.cuda.device(like.device):
            return run_recorded(name, inputs, options, outputs, first_call)
    key = (name, like.device.index, options, *map(_signature, inputs.values()))
    recorder = _recordings.get(key)
    if recorder is not None:
        made = recorder.replay(inputs, like)
        return [made[output] for output in outputs]  # pyright: ignore[reportReturnType]
    recorder = Recorder(like)
    results = first_call(recorder)
    if recorder.is_repeatable:
        if len(_recordings) >= MOST_RECORDINGS:
            _recordings.clear()
        recorder.like = None  # or the first call's tensors would live as long as the process
        _recordings[key] = recorder
    return results


def _signature(x: Tensor | None) -> Any:
    """All of a tensor that a launch depends on."""
    return None if x is None else (x.shape, x.stride(), x.dtype, x.data_ptr() % 16)
