"""The GPU that a call runs on, as far as kernels and their tiles depend on it."""

import functools
from typing import NamedTuple

import torch

HOPPER_FAMILY = 9


class Gpu(NamedTuple):
    """What tiles depend on: ``family`` is the major number of the compute capability."""

    name: str
    family: int
    shared_bytes: int
    processors: int

    @property
    def has_copy_engine(self) -> bool:
        """True for Hopper and later; elsewhere tensor descriptors only cost."""
        return self.family >= HOPPER_FAMILY


INTERPRETER = Gpu("Triton's interpreter", HOPPER_FAMILY, 227 * 1024, 132)


@functools.cache
def gpu_of(device: torch.device) -> Gpu:
    """The GPU of a device; for the CPU one like a Hopper."""
    if device.type != "cuda":
        return INTERPRETER
    found = torch.cuda.get_device_properties(device)
    shared = found.shared_memory_per_block_optin
    return Gpu(found.name, found.major, shared, found.multi_processor_count)
