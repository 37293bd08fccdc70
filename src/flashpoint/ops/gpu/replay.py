"""Kernel launches that are remembered: a second call like the first differs in addresses only.

Triton looks at some fifty arguments a launch, and we compute most of them: 150 us, as much as a
small attention takes on the GPU. A call with the same shapes, strides and terms is replayed from
what the first one recorded: outputs are made, and addresses handed to the launchers.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.gpu import versions
from flashpoint.ops.gpu.launcher import Launch, Shortcut, current_stream, is_watched
from flashpoint.ops.implementations import INTERPRETED

# what says that Triton's launcher is another one; it has launched nothing then
CHANGED = (AttributeError, ImportError, SystemError, TypeError, ValueError)
MOST_RECORDINGS = 1024  # then all are forgotten: shapes that never come back


def only(kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a kernel takes."""
    return {name: arguments[name] for name in kernel.arg_names if name in arguments}


def run_once(kernel: Any, num_programs: int, arguments: dict[str, Any]) -> Any:
    """Launch a kernel by Triton's own way; gives what it compiled, None where it interprets."""
    versions.warn_if_unsupported()
    return kernel[(num_programs,)](**arguments, **versions.launch_options())


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
        self.shortcuts: list[Shortcut] = []
        is_known = versions.launcher_form() is not None
        self.is_repeatable = like.is_cuda and not INTERPRETED and is_known

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

    def alias(self, names: dict[str, str]) -> None:
        """Tell that kernels from now on know tensors by other names too, as {other: name}."""
        self.renamed |= {other: self.renamed.get(name, name) for other, name in names.items()}

    def launch(self, kernel: Any, num_programs: int, arguments: dict[str, Any]) -> None:
        """Run a kernel by Triton's own way."""
        compiled = run_once(kernel, num_programs, arguments)
        if not self.is_repeatable:
            return
        if arguments.get("normalizers") is not None:  # computed from values that change
            self.is_repeatable = False
            return
        values = [arguments[name] for name in kernel.arg_names]
        names = [self.renamed.get(name, name) for name in kernel.arg_names]
        try:
            launch = Launch.of(compiled, (num_programs, 1, 1), names, values)
        except Exception:  # noqa: BLE001 - what it copies is not as we know it; the call is done
            self.is_repeatable = False
            versions.warn_of_launcher()
            return
        self.launches.append(launch)
        if launch.shortcut is not None:
            self.shortcuts.append(launch.shortcut)

    def replay(
        self, inputs: dict[str, Tensor | None], addresses: dict[str, int], like: Tensor
    ) -> dict[str, Tensor | None]:
        """All launches again on other inputs; gives them and the outputs by name."""
        tensors, device = dict(inputs), like.device
        for name, (shape, dtype) in self.buffers.items():
            made = tensors[name] = torch.empty(*shape, dtype=dtype, device=device)
            addresses[name] = made.data_ptr()
        if not self._replay_past_triton(tensors, addresses, device):
            self._replay_by_triton(tensors)
        return tensors

    def _replay_past_triton(
        self, tensors: dict[str, Tensor | None], addresses: dict[str, int], device: torch.device
    ) -> bool:
        """All launches straight to the C launcher; False where they must go Triton's own way."""
        if len(self.shortcuts) < len(self.launches):
            return False
        for name, parts in self.parts.items():
            whole = tensors[name]
            assert whole is not None
            step = whole.stride(2) * whole.element_size()
            for number, part in enumerate(parts):
                addresses[part] = addresses[name] + number * step
        try:
            if is_watched():
                return False
            stream = current_stream(device.index)
            for shortcut in self.shortcuts:
                shortcut.run(addresses, stream)
        except CHANGED:
            self.shortcuts.clear()
            versions.warn_of_launcher()
            return False
        return True

    def _replay_by_triton(self, tensors: dict[str, Tensor | None]) -> None:
        for name, parts in self.parts.items():
            whole = tensors[name]
            assert whole is not None
            tensors.update(zip(parts, whole.unbind(2), strict=True))
        for launch in self.launches:
            launch.run(tensors)


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
    if like.is_cuda and like.get_device() != torch._C._cuda_getDevice():
        with torch.cuda.device(like.device):
            return run_recorded(name, inputs, options, outputs, first_call)
    signature, addresses = _identify(inputs)
    key = (name, options, *signature)
    recorder = _recordings.get(key)
    if recorder is not None:
        made = recorder.replay(inputs, addresses, like)
        return [made[output] for output in outputs]  # pyright: ignore[reportReturnType]
    recorder = Recorder(like)
    results = first_call(recorder)
    if recorder.is_repeatable:
        if len(_recordings) >= MOST_RECORDINGS:
            _recordings.clear()
        recorder.like = None  # or the first call's tensors would live as long as the process
        _recordings[key] = recorder
    return results


def _identify(inputs: dict[str, Tensor | None]) -> tuple[list[Any], dict[str, int]]:
    """All of the tensors that a launch depends on but their addresses, and these by name."""
    signature: list[Any] = []
    addresses: dict[str, int] = {}
    for name, x in inputs.items():
        if x is None:
            signature.append(None)
        else:
            address = addresses[name] = x.data_ptr()
            signature += (x.shape, x.stride(), x.dtype, x.get_device(), address % 16)
    return signature, addresses
