"""What ``numerics`` has for q, k and v apart, for packed ones: inputs, runs and budgets."""

from typing import Any

import torch
from implementations import device_of
from numerics import assert_judged, run_reference
from torch import Tensor

from flashpoint import HeadNorm, attention_qkvpacked
from flashpoint.lab.selfcheck.judge import Sums

Kinds = tuple[str | None, str | None]


def make_inputs(
    B: int = 2, L: int = 17, H: int = 2, D: int = 16, *, gains: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """qkv, do and gains in fp64, with values that fp16 and bf16 hold exactly."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"qkv": (B, L, 3, H, D), "do": (B, L, H, D)}
    sizes |= {"q_gain": (D,), "k_gain": (D,)} if gains else {}
    inputs = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    return {name: x.bfloat16().double() for name, x in inputs.items()}


def norms(
    kinds: Kinds, q_gain: Tensor | None = None, k_gain: Tensor | None = None
) -> dict[str, HeadNorm | None]:
    """The two norms as options of a call."""
    pairs = zip(("q_norm", "k_norm"), kinds, (q_gain, k_gain), strict=True)
    return {name: kind and HeadNorm(kind, gain) for name, kind, gain in pairs}


def run(
    impl: str,
    dtype: torch.dtype,
    inputs: dict[str, Tensor],
    kinds: Kinds,
    device: torch.device | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """The output, and the gradients of qkv, of the gains in use and of float options."""
    device = device_of(impl) if device is None else device
    options = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    wanted = {name: inputs[name] for name in ("qkv", "q_gain", "k_gain") if name in inputs}
    for name, kind in zip(("q_gain", "k_gain"), kinds, strict=True):
        if kind is None:
            wanted.pop(name, None)
    scored = {
        n: x for n, x in options.items() if isinstance(x, torch.Tensor) and x.is_floating_point()
    }
    leaves = {n: x.to(device, dtype).requires_grad_() for n, x in (wanted | scored).items()}
    gains = {name: leaves.get(name) for name in ("q_gain", "k_gain")}
    options |= {name: leaves[name] for name in scored}
    o = attention_qkvpacked(leaves["qkv"], **norms(kinds, **gains), **options, impl=impl)
    grads = torch.autograd.grad(o, list(leaves.values()), inputs["do"].to(device, dtype))
    return {"o": o.detach()} | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def assert_exact(
    impl: str, dtype: torch.dtype, inputs: dict[str, Tensor], kinds: Kinds, **options: Any
) -> None:
    """Output and gradients stay within twice plain PyTorch's error; in fp64, within its own."""
    got = run(impl, dtype, inputs, kinds, **options)
    exact, plain = (
        run_reference(run, precision, inputs, kinds, device_of(impl), **options)
        for precision in (torch.float64, dtype)
    )
    B, L, _, H, _ = inputs["qkv"].shape
    rows = dict.fromkeys(("dq_gain", "dk_gain"), B * L * H)
    assert_judged(got, exact, plain, Sums(terms=L, on_top=rows))
