"""Which calls get the kernels for Hopper; these are imported only where one does."""

import functools
from types import ModuleType

import torch
from torch import Tensor

from flashpoint.ops.gpu.call import Problem, block_of
from flashpoint.ops.gpu.device import HOPPER_FAMILY, gpu_of
from flashpoint.ops.gpu.versions import has_supported_gluon
from flashpoint.ops.implementations import INTERPRETED

FORWARD_ROWS = 192  # queries that fill the large tiles of the forward kernel
BACKWARD_ROWS = 192  # queries and keys that fill those of the backward kernel
NORMED_DIM = 64  # BLOCK_D of calls with norms: registers hold x, dx and what comes of them


def forward_kernels(problem: Problem) -> ModuleType | None:
    """``hopper_forward``, where it serves the call."""
    if problem.num_queries < FORWARD_ROWS or not serves(problem.q.device):
        return None
    from flashpoint.ops.gpu.hopper import tiles as hopper_tiles
    from flashpoint.ops.gpu.hopper.forward import kernel as hopper_forward

    return hopper_forward if hopper_tiles.suits(problem) else None


def backward_kernels(problem: Problem, do: Tensor) -> ModuleType | None:
    """``hopper_backward``, where it serves the call."""
    shortest = min(problem.num_queries, problem.num_keys)
    if shortest < BACKWARD_ROWS or not serves(problem.q.device):
        return None
    from flashpoint.ops.gpu.hopper.backward import kernel as hopper_backward

    return hopper_backward if hopper_backward.suits(problem, do) else None


def takes_norms(problem: Problem) -> bool:
    """True where they can normalise q and k of a call, and take gradients through the norms."""
    return block_of(problem.q.shape[3]) == NORMED_DIM


@functools.cache
def serves(device: torch.device) -> bool:
    """True where the device is a Hopper GPU and this Triton has the Gluon we know."""
    is_hopper = device.type == "cuda" and gpu_of(device).family == HOPPER_FAMILY
    return is_hopper and not INTERPRETED and has_supported_gluon()
