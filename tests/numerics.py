"""How exact is exact: inputs, runs and error budgets shared by the tests of the operator."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from implementations import device_of, widest_dtype
from torch import Tensor

import flashpoint
from flashpoint.lab.selfcheck.judge import Sample, Sums, share_of

# B, Hq, Hkv, Lq, Lk, D, Dv: each kills a different careless kernel.
SHAPES = {
    "one-token": (1, 1, 1, 1, 1, 16, 16),
    "ragged": (2, 3, 3, 67, 129, 32, 32),
    "cross": (1, 2, 2, 64, 200, 64, 48),
    "grouped": (2, 6, 2, 37, 53, 24, 40),
    "more-queries": (1, 2, 1, 90, 31, 16, 16),
    "past-tile": (1, 2, 1, 300, 1100, 16, 16),
}


def make_inputs(shape: tuple[int, ...], seed: int = 0) -> dict[str, Tensor]:
    """q, k, v and the gradient do, in fp64 with values that fp16 and bf16 hold exactly."""
    B, Hq, Hkv, Lq, Lk, D, Dv = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = {
        "q": (B, Hq, Lq, D),
        "k": (B, Hkv, Lk, D),
        "v": (B, Hkv, Lk, Dv),
        "do": (B, Hq, Lq, Dv),
    }
    return {
        name: torch.randn(size, generator=generator).bfloat16().double()
        for name, size in sizes.items()
    }


def place_qkv(
    impl: str, shape: tuple[int, ...], dtype: torch.dtype | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """q, k, v where an implementation wants them, in the most exact dtype unless told."""
    inputs = make_inputs(shape, seed)
    dtype = widest_dtype(impl) if dtype is None else dtype
    return {name: inputs[name].to(device_of(impl), dtype) for name in "qkv"}


def make_qkv(
    shape: tuple[int, ...] = (2, 4, 2, 40, 70, 32, 32),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Tensor]:
    """q, k, v where Triton's kernels want them."""
    return place_qkv("triton", shape, dtype, seed)


def run(
    impl: str,
    dtype: torch.dtype,
    inputs: dict[str, Tensor],
    device: torch.device | None = None,
    **options,
) -> dict[str, Tensor]:
    """The output o and the gradient of every input; float tensors among the options count too.

    All is moved to ``device`` first, by default the one that ``impl`` serves.
    """
    device = device_of(impl) if device is None else device
    options = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in options.items()}
    differentiated = {name: t for name, t in inputs.items() if name != "do"} | {
        name: x for name, x in options.items() if isinstance(x, Tensor) and x.is_floating_point()
    }
    leaves = {name: t.to(device, dtype).requires_grad_() for name, t in differentiated.items()}
    o = flashpoint.attention(**{**options, **leaves}, impl=impl)
    grads = torch.autograd.grad(o, list(leaves.values()), inputs["do"].to(device, dtype))
    named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"o": o.detach(), **named}


def assert_within_budget(
    name: str,
    got: Tensor,
    exact: Tensor,
    plain: Tensor,
    sums: Sums | None = None,
    part: Tensor | None = None,
) -> None:
    """``exact`` is the reference in fp64, ``plain`` the reference at got's dtype.

    Grouped heads and sums that end in a few numbers get more, as ``sums`` says, and so does what
    is left of two large numbers, of which ``part`` is one.
    """
    assert torch.isfinite(got).all(), f"{name}: non-finite values"
    assert got.shape == exact.shape
    parts = {} if part is None else {name: part}
    sample = Sample({name: got}, {name: exact}, {name: plain}, parts)
    share = share_of(name, [sample], sums or Sums())
    assert share.ratio <= 1.0, str(share)


_MOST_REMEMBERED = 8  # a case in all dtypes, and the one before
_remembered: OrderedDict[Any, dict[str, Tensor]] = OrderedDict()


def run_reference(
    run: Callable[..., dict[str, Tensor]], dtype: torch.dtype, *given: Any, **options: Any
) -> dict[str, Tensor]:
    """What ``run`` gives for the reference; computed once for the cases that ask in a row.

    One in fp64 serves all dtypes and implementations. Calls are told apart by the values given.
    """
    key = (run, dtype, _value_of(given), _value_of(options))
    if key not in _remembered:
        _remembered[key] = run("reference", dtype, *given, **options)
        if len(_remembered) > _MOST_REMEMBERED:
            _remembered.popitem(last=False)
    return _remembered[key]


def _value_of(x: Any) -> Any:
    """The same for the same values, tensors among them; hashable."""
    if isinstance(x, dict):
        return tuple((name, _value_of(value)) for name, value in x.items())
    if isinstance(x, tuple):
        return tuple(map(_value_of, x))
    if not isinstance(x, Tensor):
        return type(x), repr(x) if isinstance(x, float) else x  # -0.0 is another number than 0.0
    return x.dtype, x.shape, x.stride(), x.device, hash(x.detach().cpu().numpy().tobytes())


def assert_exact(
    impl: str, dtype: torch.dtype, inputs: dict[str, Tensor], *, cancels: bool = False, **options
) -> None:
    """Output and every gradient of ``impl`` stay within twice plain PyTorch's error.

    In fp64 nothing more exact is at hand, so the root of a sum's length is the whole budget. Where
    a division by sums ``cancels``, what it takes off the gradients counts too: drawn calls have
    queries that see one key (``selfcheck/evaluate.py``).
    """
    got = run(impl, dtype, inputs, **options)
    exact, plain = (
        run_reference(run, precision, inputs, device_of(impl), **options)
        for precision in (torch.float64, dtype)
    )
    group = inputs["q"].shape[1] / max(inputs["k"].shape[1], 1)
    longest = max(int(group) * inputs["q"].shape[2], inputs["k"].shape[2])
    parts = taken_off(inputs, exact["o"], **options) if cancels else {}
    assert_judged(got, exact, plain, Sums(group, longest), parts)


def taken_off(inputs: dict[str, Tensor], o: Tensor, **options) -> dict[str, Tensor]:
    """What a division by sums takes off dq and dk, in fp64: that of -o_i in v_j - o_i."""
    values = {name: x.to(o.device) for name, x in inputs.items()}
    leaves = {name: values[name].requires_grad_() for name in "qkv"}
    attend = partial(flashpoint.attention, **options, return_sums=True, impl="reference")
    ones, sums = attend(**leaves | {"v": torch.ones_like(leaves["v"])})
    over = (ones[..., 0] / sums.masked_fill(sums == 0, 1)).detach()
    given = (values["do"] * o).sum(-1) * over
    dq, dk = torch.autograd.grad(sums, [leaves["q"], leaves["k"]], given)
    return {"dq": dq, "dk": dk}


def assert_judged(
    got: dict[str, Tensor],
    exact: dict[str, Tensor],
    plain: dict[str, Tensor],
    sums: Sums,
    parts: dict[str, Tensor] | None = None,
) -> None:
    """Every result stays within its budget; in fp64 the reference is exact by itself."""
    for name, value in got.items():
        near = exact if value.dtype == torch.float64 else plain
        part = (parts or {}).get(name)
        assert_within_budget(name, value, exact[name], near[name], sums, part)
