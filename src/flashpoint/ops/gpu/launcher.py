"""One launch of a compiled kernel, again: by Triton's own way, or straight to its C launcher.

Triton's way tells hooks that nobody has set, asks the driver about every pointer, and describes
tensors to the copy engine anew: 32 us with four descriptors, of which the C launcher takes 8.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import triton
from torch import Tensor

from flashpoint.ops.gpu.versions import Form, launcher_form, warn_of_launcher

MOST_MAPS = 128  # of one argument; then all are forgotten
STREAM = 3  # its place among the launcher's own arguments


class Address(NamedTuple):
    """A tensor of which nothing but the address is known."""

    address: int

    def data_ptr(self) -> int:
        """As tensors have it."""
        return self.address


def described(descriptor: Any, base: Tensor | Address | None) -> Any:
    """A copy of Triton's own descriptor for another tensor of the same kind, or for none.

    All that this version of Triton keeps in one comes along, whatever its name. Nothing is
    checked anew: what a recording is found by has it that shapes, strides and alignment agree.
    """
    moved = copy.copy(descriptor)
    moved.base = base
    return moved


class Maps(dict[int, Any]):
    """Tensors of one kind as the copy engine knows them, by their addresses.

    The allocator of a loop hands out the same addresses again.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, address: int) -> Any:
        if len(self) >= MOST_MAPS:
            self.clear()
        made = self[address] = self.make(address)
        return made


class Shortcut(NamedTuple):
    """Triton's C launcher with all of its arguments but the stream and the addresses.

    Attributes:
        own: the launcher's arguments, but for the kernel's.
        arguments: the kernel's, with a descriptor's several parts in its place.
        form: how ``arguments`` follow ``own``.
        pointers, maps: which arguments the tensors are, by their roles.
    """

    launch: Callable[..., None]
    own: list[Any]
    arguments: list[Any]
    form: Form
    pointers: list[tuple[int, str]]
    maps: list[tuple[int, str, Maps]]

    def run(self, addresses: dict[str, int], stream: int) -> None:
        """Launch on tensors of the same kind at other addresses."""
        launch, own, arguments, form, pointers, maps_of = self
        own, arguments = own.copy(), arguments.copy()
        own[STREAM] = stream
        for at, role in pointers:
            arguments[at] = addresses[role]
        for at, role, maps in maps_of:
            arguments[at] = maps[addresses[role]]
        if form == "flat":
            launch(*own, *arguments)
        else:
            launch(*own, arguments)


class Launch(NamedTuple):
    """One launch: a compiled kernel, its grid and arguments, and where the tensors go in these."""

    compiled: Any
    grid: tuple[int, int, int]
    arguments: list[Any]
    tensors: list[tuple[int, str]]
    descriptors: list[tuple[int, str, Any]]
    shortcut: Shortcut | None

    @classmethod
    def of(
        cls, compiled: Any, grid: tuple[int, int, int], roles: Sequence[str], values: Sequence[Any]
    ) -> "Launch":
        """A launch as it was made; the tensors in it are forgotten."""
        arguments, tensors, descriptors = list(values), [], []
        for at, (role, value) in enumerate(zip(roles, values, strict=True)):
            if isinstance(value, Tensor):
                tensors.append((at, role))
                arguments[at] = None
            elif _is_descriptor(value):
                descriptors.append((at, role, described(value, None)))
                arguments[at] = None
        shortcut = find_shortcut(compiled, grid, roles, values)
        return cls(compiled, grid, arguments, tensors, descriptors, shortcut)

    def run(self, tensors: dict[str, Tensor | None]) -> None:
        """Launch on other tensors of the same kind by Triton's own way."""
        arguments = self.arguments.copy()
        for at, role in self.tensors:
            arguments[at] = tensors[role]
        for at, role, descriptor in self.descriptors:
            arguments[at] = described(descriptor, tensors[role])
        self.compiled[self.grid](*arguments)


def find_shortcut(
    compiled: Any, grid: tuple[int, int, int], roles: Sequence[str], values: Sequence[Any]
) -> Shortcut | None:
    """The way past Triton, or None where it is not as we know it or has work of its own to do."""
    form = launcher_form()
    if form is None or compiled is None:  # nothing is compiled where kernels are interpreted
        return None
    try:
        run = compiled.run
        instrumented = getattr(run, "gsan_enabled", False)  # from 3.8 on
        if run.global_scratch_size or run.profile_scratch_size or instrumented:
            return None
        own = _own_arguments(compiled, grid, form)
        return _fill_in(run.launch, own, form, roles, values)
    except Exception:  # noqa: BLE001 - private names may raise anything; Triton's way is left
        warn_of_launcher()
        return None


def _own_arguments(compiled: Any, grid: tuple[int, int, int], form: Form) -> list[Any]:
    """What the C launcher takes beside the kernel's arguments; scratch memory and hooks: none."""
    run, metadata = compiled.run, compiled.packed_metadata
    first = [*grid, 0, compiled.function, run.launch_cooperative_grid, run.launch_pdl]
    hooks = [None, None, None]  # what they are told, enter, exit
    scratch = [None, None]
    if form == "flat":
        return [*first, *scratch, metadata, *hooks]
    return [*first, metadata, *hooks, *scratch, run.arg_annotations, run.kernel_signature]


def _fill_in(
    launch: Any, own: list[Any], form: Form, roles: Sequence[str], values: Sequence[Any]
) -> Shortcut | None:
    """The kernel's arguments; a descriptor becomes several."""
    num_described = sum(map(_is_descriptor, values))
    describers: list[Callable[[Any], list[Any]]] = []
    if num_described:  # then the C launcher is inside a function that takes them apart
        launch, describers = _take_apart(launch)
        if len(describers) != num_described:
            return None
    arguments: list[Any] = []
    pointers: list[tuple[int, str]] = []
    maps: list[tuple[int, str, Maps]] = []
    for role, value in zip(roles, values, strict=True):
        if _is_descriptor(value):
            describe = describers[len(maps)]
            make = partial(_make_map, describe, described(value, None))
            maps.append((len(arguments), role, Maps(make)))
            arguments += [None, *describe(value)[1:]]
        elif isinstance(value, Tensor):
            pointers.append((len(arguments), role))
            arguments.append(None)
        else:
            arguments.append(value)
    return Shortcut(launch, own, arguments, form, pointers, maps)


def _take_apart(launch: Any) -> tuple[Any, list[Callable[[Any], list[Any]]]]:
    """The C launcher inside Triton's, and for each descriptor what turns it into arguments.

    Empty where descriptors are no maps of the copy engine: then their pointers would have to move.
    """
    inside = inspect.getclosurevars(launch)
    metas = inside.nonlocals["tensordesc_meta"]
    if not metas or None in metas:
        return None, []
    describe = inside.nonlocals.get("make_tensordesc_arg")  # from 3.8 on, told the launcher's own
    if describe is not None:
        describers = [lambda value, meta=meta: describe(value, meta, ()) for meta in metas]
    else:
        describe = inside.globals["make_tensordesc_arg"]
        describers = [lambda value, meta=meta: describe(value, meta) for meta in metas]
    return inside.nonlocals["launcher"], describers


def _is_descriptor(value: Any) -> bool:
    """True for Triton's and for Gluon's."""
    return hasattr(value, "block_shape")


def _make_map(describe: Callable[[Any], list[Any]], descriptor: Any, address: int) -> Any:
    return describe(described(descriptor, Address(address)))[0]


def is_watched() -> bool:
    """True where somebody wants to be told of every launch, a profiler perhaps."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def current_stream(device: int) -> int:
    """The stream to launch on, as a number."""
    return triton.runtime.driver.active.get_current_stream(device)
