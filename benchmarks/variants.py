"""Time variants of the kernels for packed q, k and v in turns, for those who work on them.

    python benchmarks/variants.py now "wide: packed.ON_CHIP = range(192, 1025)"
    python benchmarks/variants.py --check now "two: hopper.backward.kernel.BOTH_CONFIGS = {}"

A variant is a name and, behind a colon, constants of modules in ``flashpoint.ops.gpu``, with
";" between them. Each is held against fp64 first, beside plain PyTorch in the same dtype; --check
stops there, when all is compiled. Times are microseconds, medians, with cold caches.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
import typer
from torch import Tensor

from flashpoint import HeadNorm, attention_qkvpacked
from flashpoint.errors import InputError
from flashpoint.lab.bench.cuda_timing import CudaTimer
from flashpoint.lab.bench.timing import Budget, Call, interleave, start
from flashpoint.ops.gpu import replay
from flashpoint.ops.implementations import Impl

T = TypeVar("T")

SHAPES = ((512, 6, 196), (256, 12, 197), (128, 12, 577), (128, 6, 784))  # B, H, L
DIM, DTYPE = 64, torch.bfloat16
CHECKED_HEADS = (3, 2)  # B, H
MOST = 2.0  # times plain PyTorch's error
BUDGET = Budget(rounds=15, seconds=0.3)


class Variant:
    """Constants that differ from those in the tree, while it is in force."""

    def __init__(self, text: str) -> None:
        self.name, _, assignments = (part.strip() for part in text.partition(":"))
        self._recordings: dict[Any, Any] = {}  # launches that are replayed have constants in them
        self._changes: list[tuple[ModuleType, str, Any, Any]] = []
        for assignment in filter(None, map(str.strip, assignments.split(";"))):
            place, _, value = (part.strip() for part in assignment.partition("="))
            module_name, _, attribute = place.rpartition(".")
            try:
                module = import_module(f"flashpoint.ops.gpu.{module_name}")
                new = eval(value, dict(vars(module)))  # who calls this may run any code anyway
                self._changes.append((module, attribute, getattr(module, attribute), new))
            except (ImportError, AttributeError, NameError, SyntaxError) as error:
                wanted = "NAME: module.CONSTANT = value"
                raise InputError(
                    f"{assignment!r} cannot be set: {error}. Write {wanted}"
                ) from error

    def __call__(self, call: Callable[[], T]) -> T:
        """Make a call with them."""
        before = replay._recordings
        replay._recordings = self._recordings
        for module, attribute, _, new in self._changes:
            setattr(module, attribute, new)
        try:
            return call()
        finally:
            for module, attribute, old, _ in self._changes:
                setattr(module, attribute, old)
            replay._recordings = before


class Inputs(NamedTuple):
    """Of one call; all but do have gradients."""

    qkv: Tensor
    do: Tensor
    gains: list[Tensor]

    def to(self, dtype: torch.dtype) -> "Inputs":
        """The same numbers in another dtype, gains in fp32 at least."""
        wide = torch.promote_types(dtype, torch.float32)
        gains = [gain.detach().to(wide).requires_grad_() for gain in self.gains]
        return Inputs(self.qkv.detach().to(dtype).requires_grad_(), self.do.to(dtype), gains)

    def attend(self, impl: Impl) -> Tensor:
        """The result."""
        q_norm, k_norm = [HeadNorm("layer", gain=gain) for gain in self.gains] or [None, None]
        return attention_qkvpacked(self.qkv, q_norm=q_norm, k_norm=k_norm, impl=impl)

    def differentiate(self, o: Tensor) -> tuple[Tensor, ...]:
        """Gradients of qkv and the gains."""
        return torch.autograd.grad(o, [self.qkv, *self.gains], self.do, retain_graph=True)

    def evaluate(self, impl: Impl) -> list[Tensor]:
        """The result and the gradients in fp64."""
        o = self.attend(impl)
        return [x.detach().double() for x in (o, *self.differentiate(o))]


def draw(shape: tuple[int, int, int], *, normed: bool) -> Inputs:
    """The same numbers every time."""
    batch, heads, length = shape
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device="cuda", generator=generator)

    qkv, do = normal(batch, length, 3, heads, DIM), normal(batch, length, heads, DIM)
    gains = [1 + 0.1 * normal(DIM) for _ in range(2 * normed)]
    return Inputs(qkv, do, gains).to(DTYPE)


def check(variant: Variant) -> float:
    """Largest error over plain PyTorch's, of results and gradients over all lengths."""
    ratios: list[float] = []
    for *_, length in SHAPES:
        for normed in (True, False):
            inputs = draw((*CHECKED_HEADS, length), normed=normed)
            exact = inputs.to(torch.float64).evaluate("reference")
            plain = inputs.evaluate("reference")
            ours = variant(partial(inputs.evaluate, "triton"))
            for right, usual, x in zip(exact, plain, ours, strict=True):
                ratios.append(float((x - right).abs().max() / (usual - right).abs().max()))
    return float(torch.tensor(ratios).max())  # NaN if one is


def time_row(
    variants: list[Variant], shape: tuple[int, int, int], *, normed: bool, mode: str
) -> str:
    """A line of microseconds, one for each variant."""
    inputs, timer = draw(shape, normed=normed), CudaTimer()
    if mode == "backward":
        call: Call = partial(inputs.differentiate, inputs.attend("triton"))
    else:
        call = torch.no_grad()(partial(inputs.attend, "triton"))
    started = {
        variant.name: start(partial(variant, call), timer, compiles=True)[0]
        for variant in variants
    }
    times = interleave(started, BUDGET, timer)
    found = "".join(f"{1e6 * timing.median_s:>12.1f}" for timing in times.values())
    return f"{shape!s:<16}{'normed' if normed else '':<8}{mode:<10}{found}"


def main(
    variants: Annotated[list[str], typer.Argument(help="NAME, or NAME: module.CONSTANT = value")],
    check_only: Annotated[bool, typer.Option("--check", help="Time nothing.")] = False,
) -> None:
    """Check all variants, then time them in turns."""
    try:
        chosen = [Variant(text) for text in variants]
        names = [variant.name for variant in chosen]
        if len(set(names)) < len(names):
            raise InputError(f"names must differ, got {', '.join(names)}.")
        if not torch.cuda.is_available():
            raise InputError("this needs a GPU, and torch finds none.")
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    with torch.cuda.stream(torch.cuda.Stream()):
        ratios = {variant.name: check(variant) for variant in chosen}
        for name, ratio in ratios.items():
            typer.echo(f"{name}: error {ratio:.2f} times plain PyTorch's")
        if not all(ratio <= MOST for ratio in ratios.values()):  # nor is NaN
            typer.echo(f"error: more than {MOST:g} times is wrong; nothing is timed.", err=True)
            raise typer.Exit(1)
        if check_only:
            return
        typer.echo(" " * 34 + "".join(f"{variant.name:>12}" for variant in chosen))
        for shape in SHAPES:
            for normed in (True, False):
                for mode in ("forward", "backward"):
                    typer.echo(time_row(chosen, shape, normed=normed, mode=mode))


if __name__ == "__main__":
    typer.run(main)
