"""Kernel launches that are remembered: a second call like the first differs in addresses only.

Triton looks at some fifty arguments a launch, and we compute most of them: 150 us, as much as a
small attention takes on the GPU. A call with the same shapes, strides and terms is replayed from
what the first one recorded: outputs are made, and addresses handed to the launchers.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.gpu import versions
from flashpoint.ops.gpu.launcher import Launch, Shortcut, current_stream, is_watched
from flashpoint.ops.gpu.reading import prepare
from flashpoint.ops.implementations import INTERPRETED

# what says that Triton's launcher is another one; it has launched nothing then
CHANGED = (AttributeError, ImportError, SystemError, TypeError, ValueError)
MOST_RECORDINGS = 1024  # then all are forgotten: shapes that never come back


class Role(StrEnum):
    """What a tensor is to a recorded call, whatever a kernel calls its argument.

    Inputs, outputs, and what lies between two launches. Most kernels name arguments by roles.
    """

    Q = "q"
    K = "k"
    V = "v"
    QKV = "qkv"
    BIAS = "bias"
    MASK = "mask"
    MASK_WORDS = "mask_words"
    NORMALIZERS = "normalizers"
    LENGTHS = "lengths"
    CU_Q = "cu_q"
    CU_K = "cu_k"
    Q_GAIN = "q_gain"
    K_GAIN = "k_gain"
    DO = "do"
    O = "o"  # noqa: E741 - the name of the output everywhere
    DQ = "dq"
    DK = "dk"
    DV = "dv"
    DQKV = "dqkv"
    DQ_SUMS = "dq_sums"
    DQ_GAIN = "dq_gain"
    DK_GAIN = "dk_gain"
    DBIAS = "dbias"
    Q_HAT = "q_hat"
    K_HAT = "k_hat"
    Q_STATISTICS = "q_statistics"
    K_STATISTICS = "k_statistics"
    PARTS = "parts"
    WORDS = "words"
    SUMS = "sums"
    TOTALS = "totals"
    DSUMS = "dsums"
    FACTORS = "factors"
    OFFSETS = "offsets"
    SLOPES = "slopes"
    G = "g"
    PART_SUMS = "part_sums"


# parts of [B, L, parts, H, D] that are arguments of their own
PARTS_OF = {Role.QKV: (Role.Q, Role.K, Role.V), Role.DQKV: (Role.DQ, Role.DK, Role.DV)}
NO_ROLES: Mapping[str, Role] = {}


def only(kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a kernel takes."""
    return {name: arguments[name] for name in kernel.arg_names if name in arguments}


def run_once(kernel: Any, num_programs: int, arguments: dict[str, Any]) -> Any:
    """Launch a kernel by Triton's own way; gives what it compiled, None where it interprets."""
    versions.warn_if_unsupported()
    return kernel[(num_programs,)](**arguments, **versions.launch_options())


class Recorder:
    """Makes outputs and launches kernels for a first call, and remembers both for later ones."""

    def __init__(self, like: Tensor) -> None:
        self.like: Tensor | None = like
        self.prepares = False  # whether kernels cannot read the inputs as they are given
        self.buffers: dict[Role, tuple[tuple[int, ...], torch.dtype]] = {}
        self.launches: list[Launch] = []
        self.shortcuts: list[Shortcut] = []
        is_known = versions.launcher_form() is not None
        self.is_repeatable = like.is_cuda and not INTERPRETED and is_known

    def empty(self, role: Role, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        """A tensor that kernels write, made anew for every call."""
        assert self.like is not None
        self.buffers[role] = (tuple(shape), dtype)
        return self.like.new_empty(self.buffers[role][0], dtype=dtype)

    def launch(
        self,
        kernel: Any,
        num_programs: int,
        arguments: dict[str, Any],
        roles: Mapping[str, Role] = NO_ROLES,
    ) -> None:
        """Run a kernel by Triton's own way.

        ``roles``: those of tensors whose arguments are not named by them.
        """
        compiled = run_once(kernel, num_programs, arguments)
        if not self.is_repeatable:
            return
        values = [arguments[name] for name in kernel.arg_names]
        held = [roles.get(name, name) for name in kernel.arg_names]
        try:
            launch = Launch.of(compiled, (num_programs, 1, 1), held, values)
        except Exception:  # noqa: BLE001 - what it copies is not as we know it; the call is done
            self.is_repeatable = False
            versions.warn_of_launcher()
            return
        for _, role, *_ in (*launch.tensors, *launch.descriptors):
            Role(role)  # raises for a tensor that a replay would not find
        self.launches.append(launch)
        if launch.shortcut is not None:
            self.shortcuts.append(launch.shortcut)

    def replay(
        self, inputs: dict[Role, Tensor | None], addresses: dict[Role, int], like: Tensor
    ) -> dict[Role, Tensor | None]:
        """All launches again on other inputs; gives them and the outputs by role."""
        tensors, device = dict(inputs), like.device
        if self.prepares:
            tensors = prepare(inputs)
            addresses |= {role: x.data_ptr() for role, x in tensors.items() if x is not None}
        for role, (shape, dtype) in self.buffers.items():
            made = tensors[role] = torch.empty(*shape, dtype=dtype, device=device)
            addresses[role] = made.data_ptr()
        if not self._replay_past_triton(tensors, addresses, device):
            self._replay_by_triton(tensors)
        return tensors

    def _replay_past_triton(
        self, tensors: dict[Role, Tensor | None], addresses: dict[Role, int], device: torch.device
    ) -> bool:
        """All launches straight to the C launcher; False where they must go Triton's own way."""
        if len(self.shortcuts) < len(self.launches):
            return False
        for whole, parts in PARTS_OF.items():
            x = tensors.get(whole)
            if x is not None:
                step = x.stride(2) * x.element_size()
                for number, part in enumerate(parts):
                    addresses[part] = addresses[whole] + number * step
        try:
            if is_watched():
                return False
            stream = current_stream(device.index)
            for shortcut in self.shortcuts:
                shortcut.run(addresses, stream)
        except CHANGED:
            self.shortcuts = []  # not cleared: another thread may be in the middle of them
            versions.warn_of_launcher()
            return False
        return True

    def _replay_by_triton(self, tensors: dict[Role, Tensor | None]) -> None:
        for whole, parts in PARTS_OF.items():
            x = tensors.get(whole)
            if x is not None:
                tensors.update(zip(parts, x.unbind(2), strict=True))
        for launch in self.launches:
            launch.run(tensors)


_recordings: dict[Any, Recorder] = {}


def run_recorded(
    name: str,
    inputs: dict[Role, Tensor | None],
    options: tuple[Any, ...],
    outputs: tuple[Role, ...],
    first_call: Callable[[Recorder, dict[Role, Tensor | None]], list[Tensor]],
) -> list[Tensor]:
    """The outputs of a call: replayed if one like it was recorded, else by ``first_call``.

    Args:
        name: of what is computed.
        inputs: tensors by role, as the caller gave them; the first is always there.
        options: everything else that the result depends on.
        outputs: roles of the tensors to return, in order.
        first_call: makes and launches by a recorder, on inputs that kernels can read.
    """
    like = next(iter(inputs.values()))
    assert like is not None
    if like.is_cuda and like.get_device() != torch._C._cuda_getDevice():
        with torch.cuda.device(like.device):
            return run_recorded(name, inputs, options, outputs, first_call)
    signature, addresses = _identify(inputs)
    key = (name, options, torch.are_deterministic_algorithms_enabled(), *signature)
    recorder = _recordings.get(key)
    if recorder is not None:
        made = recorder.replay(inputs, addresses, like)
        return [made[output] for output in outputs]  # pyright: ignore[reportReturnType]
    recorder, prepared = Recorder(like), prepare(inputs)
    recorder.prepares = any(prepared[role] is not x for role, x in inputs.items())
    results = first_call(recorder, prepared)
    if recorder.is_repeatable:
        if len(_recordings) >= MOST_RECORDINGS:
            _recordings.clear()
        recorder.like = None  # or the first call's tensors would live as long as the process
        _recordings[key] = recorder
    return results


def _identify(inputs: dict[Role, Tensor | None]) -> tuple[list[Any], dict[Role, int]]:
    """All of the tensors that a launch depends on but their addresses, and these by role."""
    signature: list[Any] = []
    addresses: dict[Role, int] = {}
    for role, x in inputs.items():
        if x is None:
            signature.append(None)
        else:
            address = addresses[role] = x.data_ptr()
            place = (x.get_device(), address % 16, x.is_neg())
            signature += (x.shape, x.stride(), x.dtype, *place)
    return signature, addresses
