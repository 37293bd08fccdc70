"""Which implementations the tests of the operator run on, and where."""

import torch

IMPLEMENTATIONS = ("reference", "cpu")
FAST = IMPLEMENTATIONS[1:]  # those that are held to the reference


def device_of(impl: str) -> torch.device:
    """Where an implementation's tensors must be."""
    return torch.device({"reference": "cpu", "cpu": "cpu"}[impl])
