"""Who can compute the operator here, and why the others cannot."""

from typing import Literal, NamedTuple

import torch

from flashpoint.errors import InputError, UnsupportedError, describe, hint

Impl = Literal["auto", "reference", "cpu", "triton"]

_NAMES = ("auto", "reference", "cpu", "triton")
_NO_TRITON = "this version has no GPU kernels yet; impl='reference' serves CUDA tensors"


class Status(NamedTuple):
    """One implementation on this machine, as ``flashpoint doctor`` shows it."""

    name: str
    available: bool
    detail: str


def survey() -> list[Status]:
    """All implementations, with what they are for or why they do not work here."""
    threads = torch.get_num_threads()
    return [
        Status("reference", True, "the definition in plain PyTorch, any device, fp16 to fp64"),
        Status("cpu", True, f"tiled, O(L) memory, {threads} threads; impl='auto' for CPU tensors"),
        Status("triton", False, _NO_TRITON),
    ]


def choose(impl: str, q: torch.Tensor) -> str:
    """The implementation to use: a named one or a refusal; "auto" takes the fastest that can."""
    if isinstance(impl, str) and impl == "auto":
        return "cpu" if q.is_cpu or q.is_meta else "reference"
    if impl == "reference":
        return impl
    if not isinstance(impl, str) or impl not in _NAMES:
        raise InputError(
            f"impl={describe(impl)} is unknown. {hint(impl, _NAMES)}Known: {', '.join(_NAMES)}."
        )
    if impl == "triton":
        raise UnsupportedError(f"impl='triton' cannot serve: {_NO_TRITON}.")
    if not (q.is_cpu or q.is_meta):
        raise UnsupportedError(
            f"impl='cpu' needs tensors on the CPU, q is on {q.device}. "
            "Move the tensors, or pass impl='auto' or 'reference'."
        )
    return impl
