"""The operator as PyTorch knows it: schemas, shapes, autograd and FLOP counts in one place.

``torch.ops.flashpoint.attention`` and ``attention_varlen`` are opaque to torch.compile and export,
have fake kernels for tracing, and differentiate through ``*_backward`` operators of their own. All
take q, k, v, bias, mask first, then their lengths, then the fields of ``Terms``.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _get_tracing_state
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.utils.flop_counter import register_flop_formula

from flashpoint.errors import UnsupportedError
from flashpoint.ops.check import cast_for_autocast
from flashpoint.ops.cpu.backward import backward
from flashpoint.ops.cpu.forward import forward
from flashpoint.ops.cpu.varlen import backward_varlen, forward_varlen
from flashpoint.ops.implementations import INTERPRETED
from flashpoint.ops.spec import Terms

_SCORED = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask"
_TERMS = (
    "str activation, float alpha, str length, float gain, float? scale, float bias_number, "
    "SymInt? left, SymInt? right"
)
_NEEDS = "bool need_dbias, bool need_dmask"
_ORDINARY = frozenset((Tensor, Parameter, NoneType))  # other subclasses may mean anything
_NUM_TERMS = len(Terms._fields)


class Kernels(NamedTuple):
    """What computes an operator on one kind of device.

    Attributes:
        run: (q, k, v, bias, mask, *lengths, terms) -> o.
        run_backward: (do, q, k, v, bias, mask, *lengths, terms, need_dbias, need_dmask) -> grads.
    """

    run: Callable[..., Tensor]
    run_backward: Callable[..., list[Tensor]]


class Operator:
    """``flashpoint::name`` and ``flashpoint::name_backward``, and the shortest way to call them.

    Plain eager calls skip PyTorch's dispatcher, which costs as much as a small attention itself.

    Args:
        name: of the operator.
        lengths: the part of the schema between the mask and the terms.
        kernels: by the type of the tensors' device.
    """

    def __init__(self, name: str, lengths: str, kernels: Mapping[str, Kernels]) -> None:
        self.kernels = kernels
        inputs = f"{_SCORED}, {lengths}, {_TERMS}"
        schemas = {
            name: f"({inputs}) -> Tensor",
            f"{name}_backward": f"(Tensor do, {inputs}, {_NEEDS}) -> Tensor[]",
        }
        flat = (self._run_flat, self._run_backward_flat)
        for (op, schema), kernel in zip(schemas.items(), flat, strict=True):
            tags = (torch.Tag.pt2_compliant_tag,)
            torch.library.define(f"flashpoint::{op}", schema, tags=tags)
            for device in kernels:
                torch.library.impl(f"flashpoint::{op}", device.upper(), kernel)
        self.op = getattr(torch.ops.flashpoint, name)
        self.op_backward = getattr(torch.ops.flashpoint, f"{name}_backward")

        for device in ("CPU", "CUDA"):
            torch.library.impl(f"flashpoint::{name}", f"Autocast{device}", self._run_cast)
        torch.library.register_fake(f"flashpoint::{name}", _fake)
        torch.library.register_fake(f"flashpoint::{name}_backward", _fake_backward)
        torch.library.register_autograd(
            f"flashpoint::{name}", self._differentiate_op, setup_context=_save
        )
        torch.library.register_autograd(f"flashpoint::{name}_backward", _refuse)
        register_flop_formula(self.op, get_raw=True)(_flops)
        register_flop_formula(self.op_backward, get_raw=True)(_flops_backward)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, *rest: Any
    ) -> Tensor:
        """The result; ``rest`` is the lengths, then the terms."""
        inputs = (q, k, v, bias, mask, *rest)
        watched = is_compiling() or torch._C._len_torch_dispatch_stack() or _get_tracing_state()
        device = "cpu" if q.is_cpu else q.device.type
        known = device in self.kernels and _ORDINARY.issuperset(map(type, inputs[:5]))
        if watched or not known:
            return self.op(*inputs[:-1], *inputs[-1])
        if torch._C._is_any_autocast_enabled():
            with torch.autocast(device, enabled=False):
                return self(*inputs)
        if forward_ad._current_level >= 0:
            _refuse_jvp()
        if torch._C._are_functorch_transforms_active():
            return _AttendTransformed.apply(self, *inputs)
        if torch._C._any_requires_grad(q, k, v, bias, mask):
            return _Attend.apply(self, *inputs)
        return self.kernels[device].run(*inputs)

    def run(self, q: Tensor, *rest: Any) -> Tensor:
        """The result, without a word to autograd."""
        return self.kernels[q.device.type].run(q, *rest)

    def run_backward(self, do: Tensor, *rest: Any) -> list[Tensor]:
        """The gradients, likewise."""
        return self.kernels[do.device.type].run_backward(do, *rest)

    def _run_cast(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        """Autocast's part for whoever calls the operator itself."""
        q, k, v = cast_for_autocast(q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            return self.op(q, k, v, *rest)

    def _run_flat(self, *inputs: Any) -> Tensor:
        with _outside_autocast(inputs[0]):
            return self.run(*_detached(inputs[:-_NUM_TERMS]), Terms(*inputs[-_NUM_TERMS:]))

    def _run_backward_flat(self, *inputs: Any) -> list[Tensor]:
        *tensors, need_dbias, need_dmask = inputs
        terms = Terms(*tensors[-_NUM_TERMS:])
        with _outside_autocast(inputs[0]):
            return self.run_backward(*tensors[:-_NUM_TERMS], terms, need_dbias, need_dmask)

    def _differentiate_op(self, ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, do, ctx.needs_input_grad[3:5], self.op_backward)


class _Attend(torch.autograd.Function):
    """What ``register_autograd`` gives an operator, for calls past the dispatcher."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Tensor:
        ctx.operator = operator
        _save(ctx, inputs, None)
        return operator.run(*_detached(inputs))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward_past_dispatcher(ctx, grads[0])


class _AttendTransformed(torch.autograd.Function):
    """The same in the form that torch.func asks for, which takes twice as long to call."""

    @staticmethod
    def forward(operator: Operator, *inputs: Any) -> Tensor:
        return operator.run(*_detached(inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = inputs[0]
        _save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward_past_dispatcher(ctx, grads[0])

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        _refuse_jvp()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *_: Any) -> None:
        _refuse_vmap()


class _AttendBackward(torch.autograd.Function):
    """The gradients where autograd records them: it may, but there is no way further."""

    @staticmethod
    def forward(operator: Operator, *inputs: Any) -> tuple[Tensor, ...]:
        return tuple(operator.run_backward(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _refuse(ctx)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        _refuse_jvp()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *_: Any) -> None:
        _refuse_vmap()


def _backward_past_dispatcher(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
    def run(*inputs: Any) -> Any:
        with _outside_autocast(inputs[0]):
            if torch.is_grad_enabled():
                return _AttendBackward.apply(ctx.operator, *inputs)
            return ctx.operator.run_backward(*inputs)

    return None, *_differentiate(ctx, do, ctx.needs_input_grad[4:6], run)


def _outside_autocast(x: Tensor) -> AbstractContextManager[Any]:
    enabled = torch._C._is_any_autocast_enabled()
    return torch.autocast(x.device.type, enabled=False) if enabled else nullcontext()


def _refuse(ctx: Any, *_: Any) -> None:
    raise UnsupportedError(
        "the fused operator has no second derivatives. Pass impl='reference', which has them."
    )


def _refuse_jvp(*_: Any) -> None:
    raise UnsupportedError(
        "the fused operator has no forward-mode derivatives. Pass impl='reference' for them."
    )


def _refuse_vmap() -> None:
    raise UnsupportedError(
        "the fused operator cannot be vmapped; its batch axis does the same. "
        "Fold the axis into the batch, or pass impl='reference'."
    )


def _detached(inputs: tuple[Any, ...]) -> list[Any]:
    """The inputs as kernels want them, without a word of autograd on them."""
    return [x.detach() if isinstance(x, Tensor) else x for x in inputs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    # q, k, v and what the caller gave beside them: no weights, no statistics, not the output.
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]


def _differentiate(
    ctx: Any, do: Tensor, needs: tuple[bool, bool], run: Callable[..., Any]
) -> tuple[Tensor | None, ...]:
    """One gradient or None for each input; ``needs`` says whether bias and mask want theirs."""
    saved = zip(ctx.saved_tensors, ctx.others, strict=True)
    inputs = [other if tensor is None else tensor for tensor, other in saved]
    dq, dk, dv, *rest = run(do, *inputs, *needs)
    scored = [rest.pop(0) if need else None for need in needs]
    return dq, dk, dv, *scored, *[None] * (len(inputs) - 5)


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def _fake_backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    bias, mask, *_, need_dbias, need_dmask = rest
    inputs = [q, k, v, *([bias] if need_dbias else []), *([mask] if need_dmask else [])]
    return [x.new_empty(x.shape) for x in inputs]


def _count_pairs(q: Tensor, k: Tensor, rest: tuple[Any, ...]) -> int:
    """Query-key pairs over all heads; those outside a mask count, as they do for torch's SDPA."""
    if q.dim() == 4:
        return q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    cu_seqlens_q, cu_seqlens_k, longest_q, longest_k = rest[2:6]
    if type(cu_seqlens_q) is not Tensor or cu_seqlens_q.is_meta:  # nothing to read
        return q.shape[1] * (cu_seqlens_q.shape[0] - 1) * longest_q * longest_k
    return q.shape[1] * int((cu_seqlens_q.diff().long() * cu_seqlens_k.diff().long()).sum())


def _flops(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **_: Any) -> int:
    """Two products: q @ k and weights @ v."""
    return 2 * _count_pairs(q, k, rest) * (q.shape[-1] + v.shape[-1])


def _flops_backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **_: Any) -> int:
    """Five products: scores again, dw, dv, dq and dk."""
    return 2 * _count_pairs(q, k, rest) * (3 * q.shape[-1] + 2 * v.shape[-1])


def _on_gpu() -> Kernels:
    """Triton is imported by the first call that needs it."""

    def run(*inputs: Any) -> Tensor:
        from flashpoint.ops.triton.forward import launch_forward

        return launch_forward(*inputs)

    def run_backward(*inputs: Any) -> list[Tensor]:
        from flashpoint.ops.triton.backward import launch_backward

        return launch_backward(*inputs)

    return Kernels(run, run_backward)


def _on_gpu_varlen() -> Kernels:
    def run(*inputs: Any) -> Tensor:
        from flashpoint.ops.triton.forward import launch_forward_varlen

        return launch_forward_varlen(*inputs)

    def run_backward(*inputs: Any) -> list[Tensor]:
        from flashpoint.ops.triton.backward import launch_backward_varlen

        return launch_backward_varlen(*inputs)

    return Kernels(run, run_backward)


_LENGTHS = "Tensor? key_lengths"
_ENDS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"

attend = Operator("attention", _LENGTHS, {"cpu": Kernels(forward, backward), "cuda": _on_gpu()})
attend_varlen = Operator(
    "attention_varlen",
    _ENDS,
    {"cpu": Kernels(forward_varlen, backward_varlen), "cuda": _on_gpu_varlen()},
)


# The same two with the GPU's kernels for CPU tensors, where Triton interprets them.
attend_interpreted = attend_varlen_interpreted = None
if INTERPRETED:
    attend_interpreted = Operator("attention_interpreted", _LENGTHS, {"cpu": _on_gpu()})
    attend_varlen_interpreted = Operator(
        "attention_varlen_interpreted", _ENDS, {"cpu": _on_gpu_varlen()}
    )
