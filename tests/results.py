"""What a call gives: its output and every gradient by name, and their comparison."""

from collections.abc import Callable

import torch
from torch import Tensor


def evaluate(call: Callable[..., Tensor], **tensors: Tensor) -> dict[str, Tensor]:
    """The output of ``call(**tensors)`` and the gradient of each tensor, for a fixed random do."""
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}
    o = call(**leaves)
    generator = torch.Generator().manual_seed(0)
    do = torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o)
    grads = torch.autograd.grad(o, list(leaves.values()), do, materialize_grads=True)
    named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"o": o.detach(), **named}


def assert_same(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-12
) -> None:
    """Equal up to rounding: ``tolerance`` is relative to the largest value of each tensor."""
    assert got.keys() == expected.keys()
    for name, value in got.items():
        largest = expected[name].abs().max().item() if value.numel() else 0.0
        torch.testing.assert_close(
            value,
            expected[name],
            rtol=0.0,
            atol=tolerance * max(1.0, largest),
            msg=lambda text, name=name: f"{name}: {text}",
        )
