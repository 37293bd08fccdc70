"""Which implementations the tests of the operator run on, where, and for which cases."""

import functools
import inspect
from collections.abc import Callable
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

    Around our operators there is little code, of plain PyTorch a minute's C++.
    """
    return "aot_eager" if impl == "reference" else "inductor"


def operator(impl: str, name: str) -> Any:
    """``torch.ops.flashpoint.<name>`` for the implementation's tensors."""
    if is_interpreted(impl):
        stem, backward, _ = name.partition("_backward")
        name = f"{stem}_interpreted{backward}"
    return getattr(torch.ops.flashpoint, name)


def interpreted(keep: Callable[..., bool]) -> pytest.MarkDecorator:
    """In its interpreter Triton runs the test where ``keep`` says so, given some parameters."""
    return pytest.mark.interpreted.with_args(keep)


def on_gpu(keep: Callable[..., bool]) -> pytest.MarkDecorator:
    """The same for kernels on a GPU, where each new kind of call takes seconds to compile."""
    return pytest.mark.on_gpu.with_args(keep)


def is_left_out(item: pytest.Item, every_case: bool) -> bool:
    """Whether a collected test is a case that Triton's kernels do not serve, or not here.

    ``every_case`` keeps those that only take long.
    """
    callspec = getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("impl") != "triton":
        return False
    params = callspec.params
    dtypes = [value for value in params.values() if isinstance(value, torch.dtype)]
    if not all(serves("triton", dtype) for dtype in dtypes):
        return True
    return not every_case and not all(
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
