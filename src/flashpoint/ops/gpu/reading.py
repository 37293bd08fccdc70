"""How kernels read tensors: blocks of head dims, the copy engine's descriptors, wide loads."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

DENSE = frozenset(("o", "sums", "dsums"))  # inputs that kernels read without strides


def block_of(dim: int) -> int:
    """The power of two that holds a head dim; products want at least 16."""
    return max(16, triton.next_power_of_2(dim))


def split_dim(dim: int) -> tuple[int, int]:
    """Columns of the pieces of a head dim in the kernels for Hopper, and how many there are.

    192 is no power of two, and a block of 256 would cost 4/3. Of 256 registers hold one of two.
    """
    if dim <= 128:
        return block_of(dim), 1
    return (64, 3) if dim <= 192 else (128, block_of(dim) // 128)


def room_of(dim: int) -> int:
    """Columns that those kernels give a head dim."""
    return math.prod(split_dim(dim))


def describe_rows(x: Tensor, rows: int) -> TensorDescriptor:
    """[B, H, L, D] for loads of [1, 1, rows, a power of two]."""
    block = [1, 1, rows, block_of(x.shape[3])]
    return TensorDescriptor(x, list(x.shape), tma_strides(x), block)


def tma_strides(x: Tensor) -> list[int]:
    """Strides as the copy engine wants them: those of single rows matter to nobody but to it."""
    pairs = zip(x.shape[:3], x.stride()[:3], strict=True)
    return [stride if size > 1 else 16 for size, stride in pairs] + [1]


def is_regular(x: Tensor) -> bool:
    """True where the copy engine can read it: whole 16 bytes, dense rows, nothing repeated."""
    pitch = 16 // x.element_size()
    dense = x.stride(-1) == 1 or x.shape[-1] == 1
    if not dense or x.shape[-1] % pitch or x.data_ptr() % 16:
        return False
    return all(
        size == 1 or (stride > 0 and stride % pitch == 0)
        for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )


def loads_wide(x: Tensor) -> bool:
    """True where Triton knows that rows begin at 16 bytes: it asks numbers for a factor of 16."""
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and not any(
        stride % 16 for stride in x.stride()[:-1]
    )


def prepare(tensors: Mapping[Any, Tensor | None]) -> dict[Any, Tensor | None]:
    """The inputs as kernels can read them: no negative bit, booleans as bytes, vectors dense."""
    prepared = dict(tensors)
    for name, x in tensors.items():
        if x is None:
            continue
        if x.is_neg():
            x = x.resolve_neg()
        if x.dtype == torch.bool:
            x = x.view(torch.uint8)
        if name == "do" and not is_regular(x):  # of a sum's gradient one number is repeated
            x = x.contiguous()
            x = x.clone() if x.data_ptr() % 16 else x
        is_dense = x.dim() < 2 or name in DENSE
        prepared[name] = x.contiguous() if is_dense else x
    return prepared
