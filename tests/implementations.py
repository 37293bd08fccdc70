"""Which implementations the tests of the operator run on, and where."""

import functools

import torch

IMPLEMENTATIONS = ("reference", "cpu")
FAST = IMPLEMENTATIONS[1:]  # those that are held to the reference


def device_of(impl: str) -> torch.device:
    """Where an implementation's tensors must be."""
    return torch.device({"reference": "cpu", "cpu": "cpu"}[impl])


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
