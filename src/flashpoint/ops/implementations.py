"""Who can compute the operator here, and why the others cannot."""

import os
from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch

from flashpoint.errors import InputError, UnsupportedError, describe, hint
from flashpoint.ops.activation import BUILTIN, registered
from flashpoint.ops.cpu.native import build as native

Impl = Literal["auto", "reference", "cpu", "triton"]

LARGEST_HEAD_DIM = 256
HAS_TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, too

_NAMES = ("auto", "reference", "cpu", "triton")
_TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class Status(NamedTuple):
    """One implementation on this machine, as ``flashpoint doctor`` shows it."""

    name: str
    available: bool
    detail: str


def survey() -> list[Status]:
    """All implementations, with what they are for or why they do not work here."""
    threads = torch.get_num_threads()
    missing = _missing_for_triton()
    obstacle = native.why_not()
    fp32 = "fp32 by a kernel in C++"
    if obstacle is not None:
        fp32 = f"fp32 by PyTorch's products: {obstacle}"
    served = "interpreted on the CPU, for tests" if INTERPRETED else "impl='auto' for CUDA tensors"
    return [
        Status("reference", True, "the definition in plain PyTorch, any device, fp16 to fp64"),
        Status("cpu", True, f"tiled, O(L) memory, {threads} threads; {fp32}"),
        Status("triton", missing is None, missing or f"fused kernels; {served}"),
    ]


def choose(impl: str, q: torch.Tensor, v: torch.Tensor, activation: str, name: str = "q") -> str:
    """The implementation to use: a named one or a refusal; "auto" takes the fastest that can.

    ``name`` is what the call names q: "qkv" where that is v too.
    """
    if isinstance(impl, str) and impl == "auto":
        if q.is_cpu or q.is_meta:
            return "cpu"
        return "reference" if _triton_refusal(q, v, activation, name) else "triton"
    if impl == "reference":
        return impl
    if not isinstance(impl, str) or impl not in _NAMES:
        raise InputError(
            f"impl={describe(impl)} is unknown. {hint(impl, _NAMES)}Known: {', '.join(_NAMES)}."
        )
    if impl == "triton":
        refusal = _triton_refusal(q, v, activation, name)
        if refusal is not None:
            raise UnsupportedError(f"impl='triton' {refusal}")
    elif not (q.is_cpu or q.is_meta):
        raise UnsupportedError(
            f"impl='cpu' needs tensors on the CPU, {name} is on {q.device}. "
            "Move the tensors, or pass impl='auto' or 'reference'."
        )
    return impl


def _missing_for_triton() -> str | None:
    """What the machine lacks for the GPU's kernels."""
    if torch.version.hip is not None:
        return "the kernels are written for NVIDIA GPUs; impl='reference' serves AMD's"
    if not HAS_TRITON:
        return "triton is not installed; pip install triton (Linux), or a torch with CUDA"
    if not (torch.cuda.is_available() or INTERPRETED):
        return "no CUDA device is visible; TRITON_INTERPRET=1 runs the kernels on the CPU, slowly"
    return None


def _triton_refusal(q: torch.Tensor, v: torch.Tensor, activation: str, name: str) -> str | None:
    """Why the GPU's kernels cannot serve this call, as the rest of a sentence."""
    if torch.version.hip is not None:
        return "serves NVIDIA GPUs, this torch is built for AMD's. Pass impl='reference'."
    if not HAS_TRITON:
        return "needs the package triton. Install it, or pass impl='reference'."
    if not (q.is_cuda or q.is_meta or (INTERPRETED and q.is_cpu)):
        return (
            f"needs CUDA tensors, {name} is on {q.device}. Move the tensors, or pass impl='auto'."
        )
    reason = why_no_kernel(q, v, activation, name)
    if reason is None:
        return None
    has_functions = activation in BUILTIN or registered(activation).triton is not None
    way = "" if has_functions else "Activation(..., triton=(h, derivative)), or "
    return f"{reason}. Pass {way}impl='reference'."


def why_no_kernel(
    q: torch.Tensor, v: torch.Tensor, activation: str, name: str = "q"
) -> str | None:
    """What a call has that none of the GPU's kernels takes, as the rest of a sentence."""
    if q.dtype not in _TRITON_DTYPES:
        dtype = str(q.dtype).removeprefix("torch.")
        return f"serves float16, bfloat16 and float32, not {dtype}"
    if max(q.shape[-1], v.shape[-1]) > LARGEST_HEAD_DIM:
        value_dim = "" if name == "qkv" else f", Dv={v.shape[-1]}"
        return f"serves head dims up to {LARGEST_HEAD_DIM}, not D={q.shape[-1]}{value_dim}"
    if activation not in BUILTIN and registered(activation).triton is None:
        return f"needs activation {registered(activation).name!r} as @triton.jit functions too"
    return None
