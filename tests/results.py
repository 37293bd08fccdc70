"""What a call gives: its output and every gradient by name, and their comparison."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# of rounding over a few dozen terms, relative to the largest value
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def evaluate(call: Callable[..., Any], **tensors: Tensor) -> dict[str, Tensor]:
    """The output of ``call(**tensors)`` and the gradient of each tensor, for a fixed random do.

    A call may give the rows' sums, too: then they have a gradient besides.
    """
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}
    made = call(**leaves)
    made = made if isinstance(made, tuple) else (made,)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in made]
    grads = torch.autograd.grad(made, list(leaves.values()), given, materialize_grads=True)
    named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return dict(zip(("o", "sums", "logs"), (x.detach() for x in made), strict=False)) | named


def assert_same(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float | None = None
) -> None:
    """Equal up to rounding: ``tolerance`` is relative to the largest value of each tensor.

    None means that of the results' dtype; results in fp16 or bf16 must be equal. Rounding grows
    with the root of a sum's length, and gradients of a broadcast bias or mask are long sums.
    """
    assert got.keys() == expected.keys()
    for name, value in got.items():
        largest = expected[name].abs().max().item() if value.numel() else 0.0
        relative = TOLERANCES.get(value.dtype, 0.0) if tolerance is None else tolerance
        relative *= math.sqrt(_num_terms(name, expected))
        torch.testing.assert_close(
            value,
            expected[name],
            rtol=0.0,
            atol=relative * max(1.0, largest),
            msg=lambda text, name=name: f"{name}: {text}",
        )


def _num_terms(name: str, results: dict[str, Tensor]) -> float:
    """How many pairs of a query and a key share an element of a bias or mask."""
    if name not in ("dbias", "dmask") or not {"o", "dk"} <= results.keys():
        return 1.0
    pairs = math.prod(results["o"].shape[:-1]) * results["dk"].shape[-2]
    return max(1.0, pairs / max(results[name].numel(), 1))
