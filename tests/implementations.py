"""Which implementations the tests of the operator run on, where, and for which cases."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = find_spec("triton") is not None
# Triton's kernels run on the GPU where there is one, else in Triton's interpreter.
TRITON = [pytest.param("triton", marks=[pytest.mark.gpu] if HAS_GPU else [])] * HAS_TRITON

IN_PYTHON = ["reference", "cpu"]  # those that serve fp64 and activations of Python functions
FAST = ["cpu", *TRITON]  # those that are held to the reference
IMPLEMENTATIONS = ["reference", *FAST]

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU; no CUDA device is visible")
_IS_HOPPER = HAS_GPU and torch.cuda.get_device_capability()[0] == 9
needs_hopper = pytest.mark.skipif(
    not _IS_HOPPER, reason="needs a Hopper GPU, whose kernels it is of"
)


def device_of(impl: str) -> torch.device:
    """Where an implementation's tensors must be."""
    return torch.device("cuda" if impl == "triton" and HAS_GPU else "cpu")


def widest_dtype(impl: str) -> torch.dtype:
    """The most exact dtype that an implementation serves."""
    return torch.float32 if impl == "triton" else torch.float64


def is_interpreted(impl: str) -> bool:
    """Whether an implementation takes its time: a program of Triton's is interpreted here."""
    return impl == "triton" and not HAS_GPU


def serves(impl: str, dtype: torch.dtype) -> bool:
    """Whether an implementation takes a dtype; the interpreter multiplies bf16 as raw bits."""
    if impl != "triton":
        return True
    return dtype != torch.float64 and (HAS_GPU or dtype != torch.bfloat16)


def placed(impl: str, values: dict[str, Any]) -> dict[str, Any]:
    """Tensors on an implementation's device, strides kept; fp64 in the widest dtype it serves."""

    def place(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.to(device_of(impl), widest_dtype(impl) if x.dtype == torch.float64 else x.dtype)

    return {name: place(x) for name, x in values.items()}


def compiler_of(impl: str) -> str:
    """Who compiles a call in the tests, by all of torch.compile or all but its code.

    On a CPU its code is C++, which takes half a minute a call; tests of their own compile some.
    """
    return "inductor" if impl == "triton" and HAS_GPU else "aot_eager"


def operator(impl: str, name: str) -> Any:
    """``torch.ops.flashpoint.<name>`` for the implementation's tensors."""
    if is_interpreted(impl):
        stem, backward, _ = name.partition("_backward")
        name = f"{stem}_interpreted{backward}"
    return getattr(torch.ops.flashpoint, name)


def opcheck_backward(op: Any, args: tuple[Any, ...]) -> None:
    """PyTorch's checks of an operator that has no gradient of its own.

    Those of traced gradients are left out; they take most of the time, and compiled calls with
    gradients go through the same operators.
    """
    torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


def interpreted(keep: Callable[..., bool]) -> pytest.MarkDecorator:
    """In its interpreter Triton runs the test where ``keep`` says so, given some parameters."""
    return pytest.mark.interpreted.with_args(keep)


def on_gpu(keep: Callable[..., bool]) -> pytest.MarkDecorator:
    """The same for kernels on a GPU, where each new kind of call takes seconds to compile."""
    return pytest.mark.on_gpu.with_args(keep)


def choose_cases(items: Iterable[pytest.Item], every_case: bool) -> list[pytest.Item]:
    """The collected tests but for cases that Triton's kernels do not serve, or not here.

    Of a product with the mark ``pairwise`` some cases stay in which all pairs of values meet; in
    Triton's interpreter, which takes a second for most, some that have each value once. Random
    calls meet the other pairs there. What else is left to the interpreter gets the mark ``slow``,
    but for such cases; of a test with the mark ``long_interpreted`` all. ``every_case`` keeps all
    that are served.
    """
    served = [item for item in items if _is_served(item)]
    if every_case:
        return served
    kept: set[pytest.Item] = set()
    for (_, impl), cases in _products(served).items():
        cases = [item for item in cases if impl != "triton" or _is_wanted(item)]
        is_compiled = impl == "triton" and HAS_GPU  # where the choice by time is the test's own
        if cases and any(cases[0].iter_markers("pairwise")) and not is_compiled:
            cases = cover(cases, 1 if is_interpreted(impl) else 2)
        kept.update(cases)
        if is_interpreted(impl):
            is_long = any(any(item.iter_markers("long_interpreted")) for item in cases)
            for item in set(cases) - set([] if is_long else cover(cases, 1)):
                item.add_marker("slow")
    return [item for item in served if item in kept]


def cover(cases: list[pytest.Item], strength: int) -> list[pytest.Item]:
    """A few of the cases in which all meet that meet in any: values, or pairs of them, by 2."""
    missing = {}
    for item in cases:  # a parameter's values are the same objects in all cases
        values = sorted((name, id(value)) for name, value in _params(item).items())
        missing[item] = set(itertools.combinations(values, strength))
    chosen: list[pytest.Item] = []
    while missing and any(missing.values()):
        best = max(missing, key=lambda item: len(missing[item]))
        chosen.append(best)
        met = missing.pop(best)
        for rest in missing.values():
            rest -= met
    return chosen or cases


def _products(items: Iterable[pytest.Item]) -> dict[tuple[str, str], list[pytest.Item]]:
    """The cases of each test by the implementation that they run on."""
    products: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        products.setdefault((name, str(_params(item).get("impl"))), []).append(item)
    return products


def _params(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _is_served(item: pytest.Item) -> bool:
    params = _params(item)
    dtypes = [value for value in params.values() if isinstance(value, torch.dtype)]
    return params.get("impl") != "triton" or all(serves("triton", dtype) for dtype in dtypes)


def _is_wanted(item: pytest.Item) -> bool:
    """Whether a case of Triton's is among those that a test names for its time."""
    params = _params(item)
    return all(
        mark.args[0](**{name: params[name] for name in inspect.signature(mark.args[0]).parameters})
        for mark in item.iter_markers("on_gpu" if HAS_GPU else "interpreted")
    )


@functools.cache
def bf16_products_mix_rows() -> bool:
    """True where PyTorch's own bf16 product lets a NaN reach the row before it.

    Seen on Intel CPUs with AMX whenever the inner dimension is not a multiple of 32.
    """
    a, b = (
        torch.ones(1, 100, 70, dtype=torch.bfloat16),
        torch.ones(1, 70, 16, dtype=torch.bfloat16),
    )
    a[0, 7] = torch.nan
    return int(torch.bmm(a, b).isnan().any(-1).sum()) > 1
