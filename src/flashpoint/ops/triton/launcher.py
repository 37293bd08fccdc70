"""One launch of a compiled kernel, again: by Triton's own way, or straight to its C launcher.

Triton's way tells hooks that nobody has set, asks the driver about every pointer, and describes
tensors to the copy engine anew: 32 us with four descriptors, of which the C launcher takes 8.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

VERSIONS = ("3.6.",)  # of Triton, whose launcher was read; others go Triton's own way
MOST_MAPS = 128  # of one argument; then all are forgotten
STREAM = 3  # its place among the launcher's arguments


class Address(NamedTuple):
    """A tensor of which nothing but the address is known."""

    address: int

    def data_ptr(self) -> int:
        """As tensors have it."""
        return self.address


class Described(NamedTuple):
    """What a launch reads of a tensor descriptor."""

    base: Tensor | Address
    shape: list[int]
    strides: list[int]
    padding: str = "zero"


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
    """Triton's C launcher with all of its arguments but the stream and the addresses."""

    launch: Callable[..., None]
    arguments: list[Any]
    pointers: list[tuple[int, str]]
    maps: list[tuple[int, str, Maps]]

    def run(self, addresses: dict[str, int], stream: int) -> None:
        """Launch on tensors of the same kind at other addresses."""
        arguments = self.arguments.copy()
        arguments[STREAM] = stream
        for at, name in self.pointers:
            arguments[at] = addresses[name]
        for at, name, maps in self.maps:
            arguments[at] = maps[addresses[name]]
        self.launch(*arguments)


class Launch(NamedTuple):
    """One launch: a compiled kernel, its grid and arguments, and where the tensors go in these."""

    compiled: Any
    grid: tuple[int, int, int]
    arguments: list[Any]
    tensors: list[tuple[int, str]]
    described: list[tuple[int, str, list[int], list[int]]]
    shortcut: Shortcut | None

    @classmethod
    def of(
        cls, compiled: Any, grid: tuple[int, int, int], names: Sequence[str], values: Sequence[Any]
    ) -> "Launch":
        """A launch as it was made; the tensors in it are forgotten."""
        arguments, tensors, described = list(values), [], []
        for at, (name, value) in enumerate(zip(names, values, strict=True)):
            if isinstance(value, Tensor):
                tensors.append((at, name))
                arguments[at] = None
            elif _is_descriptor(value):
                described.append((at, name, value.shape, value.strides))
                arguments[at] = None
        shortcut = find_shortcut(compiled, grid, names, values)
        return cls(compiled, grid, arguments, tensors, described, shortcut)

    def run(self, tensors: dict[str, Tensor | None]) -> None:
        """Launch on other tensors of the same kind by Triton's own way."""
        arguments = self.arguments.copy()
        for at, name in self.tensors:
            arguments[at] = tensors[name]
        for at, name, shape, strides in self.described:
            base = tensors[name]
            assert base is not None
            arguments[at] = Described(base, shape, strides)
        self.compiled[self.grid](*arguments)


def find_shortcut(
    compiled: Any, grid: tuple[int, int, int], names: Sequence[str], values: Sequence[Any]
) -> Shortcut | None:
    """The way past Triton, or None where it is not as we know it or has work of its own to do."""
    if not triton.__version__.startswith(VERSIONS):
        return None
    try:
        run = compiled.run
        if run.global_scratch_size or run.profile_scratch_size:
            return None
        modes = (run.launch_cooperative_grid, run.launch_pdl)
        hooks = (None, None, None)  # what they are told, enter, exit
        own = (*grid, 0, compiled.function, *modes, None, None, compiled.packed_metadata, *hooks)
        return _fill_in(run.launch, list(own), names, values)
    except (AttributeError, KeyError, TypeError):
        return None


def _fill_in(
    launch: Any, arguments: list[Any], names: Sequence[str], values: Sequence[Any]
) -> Shortcut | None:
    """The kernel's arguments behind the launcher's own; a descriptor becomes several."""
    descriptors = {at for at, value in enumerate(values) if _is_descriptor(value)}
    describe, metas = None, iter(())
    if descriptors:  # then the C launcher is inside a function that takes them apart
        inside = inspect.getclosurevars(launch)
        launch, metas = inside.nonlocals["launcher"], inside.nonlocals["tensordesc_meta"]
        if inside.nonlocals["tensordesc_indices"] != descriptors or None in metas:
            return None
        describe, metas = inside.globals["make_tensordesc_arg"], iter(metas)
    pointers: list[tuple[int, str]] = []
    maps: list[tuple[int, str, Maps]] = []
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        if at in descriptors:
            meta = next(metas)
            make = partial(_make_map, describe, meta, value.shape, value.strides)
            maps.append((len(arguments), name, Maps(make)))
            arguments += [None, *describe(value, meta)[1:]]
        elif isinstance(value, Tensor):
            pointers.append((len(arguments), name))
            arguments.append(None)
        else:
            arguments.append(value)
    return Shortcut(launch, arguments, pointers, maps)


def _is_descriptor(value: Any) -> bool:
    """True for Triton's and for Gluon's."""
    return hasattr(value, "block_shape")


def _make_map(
    describe: Any, meta: dict[str, Any], shape: list[int], strides: list[int], address: int
) -> Any:
    return describe(Described(Address(address), shape, strides), meta)[0]


def is_watched() -> bool:
    """True where somebody wants to be told of every launch, a profiler perhaps."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def current_stream(device: int) -> int:
    """The stream to launch on, as a number."""
    return driver.active.get_current_stream(device)
