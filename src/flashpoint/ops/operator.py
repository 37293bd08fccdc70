"""How an operator joins PyTorch: schemas, tracing, autograd, autocast, and the way past them.

``ops/library.py`` lists the operators. All take five tensors first that may want gradients, the
last two of them bias and mask; then lengths; then options field by field, ``Terms`` last.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
from flashpoint.ops.namespace import NAMESPACE
from flashpoint.ops.spec import NormTerms, Terms

_GRAD = "Tensor do"
_NEEDS = "bool need_dbias, bool need_dmask"
_NUM_TERMS = len(Terms._fields)
_ORDINARY = frozenset((Tensor, Parameter, NoneType))  # other subclasses may mean anything


class Kernels(NamedTuple):
    """What computes an operator on one kind of device.

    Attributes:
        run: (has_sums, *tensors, terms) -> [o], or [o, sums]; packed calls have their norm terms
            before the terms.
        run_backward: (of_sums, do, *tensors, terms, need_dbias, need_dmask) -> the gradients of
            those of the first three tensors that are there, then dbias and dmask if needed.
            ``of_sums`` is empty, or (dsums, o, sums), the last two None unless o was divided by
            sums.
    """

    run: Callable[..., list[Tensor]]
    run_backward: Callable[..., list[Tensor]]


class Form(NamedTuple):
    """What calls of an operator look like.

    Attributes:
        inputs: the schema of its arguments.
        options: what the numbers and words at its end are gathered into.
        num_cast: how many tensors, from the first on, take autocast's dtype.
        fake: the result, for tracing.
        flops, flops_backward: by the arguments.
        fake_sums: the rows' sums of weights, where the operator gives them too.
    """

    inputs: str
    options: tuple[type[NormTerms] | type[Terms], ...]
    num_cast: int
    fake: Callable[..., Tensor]
    flops: Callable[..., int]
    flops_backward: Callable[..., int]
    fake_sums: Callable[..., Tensor] | None = None

    def with_sums(self, fake_sums: Callable[..., Tensor]) -> "Form":
        """That of the same calls where the rows' sums of weights are wanted, too."""
        return self._replace(fake_sums=fake_sums)

    def trace(self, *inputs: Any) -> Any:
        """The results, for tracing."""
        o = self.fake(*inputs)
        if self.fake_sums is None:
            return o
        sums = self.fake_sums(*inputs)
        return o, sums.new_empty(2, *sums.shape) if inputs[-1] else sums  # the last of the terms

    def count_backward(self, *inputs: Any, **rest: Any) -> int:
        """FLOPs of backward; the gradient of the sums and the results kept do not count."""
        if self.fake_sums is not None:
            inputs = (inputs[0], *inputs[4:])
        return self.flops_backward(*inputs, **rest)

    def flatten(self, inputs: Sequence[Any]) -> list[Any]:
        """The arguments as the schema lists them: options field by field."""
        num = len(self.options)
        return [*inputs[:-num], *itertools.chain(*inputs[-num:])]

    def gather(self, inputs: Sequence[Any]) -> list[Any]:
        """The arguments as kernels take them: each of the options as one."""
        gathered: list[Any] = []
        end = len(inputs)
        for options in reversed(self.options):
            start = end - len(options._fields)
            gathered.insert(0, options(*inputs[start:end]))
            end = start
        return [*inputs[:end], *gathered]


class Operator:
    """``flashpoint::name`` and ``flashpoint::name_backward``, and the shortest way to call them.

    Plain eager calls skip PyTorch's dispatcher, which costs as much as a small attention itself.

    Args:
        name: of the operator.
        form: what its calls look like.
        kernels: what gives them, by the type of the tensors' device.
    """

    def __init__(
        self, name: str, form: Form, kernels: Mapping[str, Callable[[], Kernels]]
    ) -> None:
        self.form, self.kernels = form, kernels
        self.has_sums = form.fake_sums is not None
        self.num_tensors = form.inputs.count("Tensor")
        results = "(Tensor, Tensor)" if self.has_sums else "Tensor"
        grads = "Tensor do, Tensor? dsums, Tensor? o, Tensor? sums" if self.has_sums else _GRAD
        schemas = {
            name: f"({form.inputs}) -> {results}",
            f"{name}_backward": f"({grads}, {form.inputs}, {_NEEDS}) -> Tensor[]",
        }
        flat = (self._run_flat, self._run_backward_flat)
        for (op, schema), kernel in zip(schemas.items(), flat, strict=True):
            tags = (torch.Tag.pt2_compliant_tag,)
            torch.library.define(f"{NAMESPACE}::{op}", schema, tags=tags)
            for device in kernels:
                torch.library.impl(f"{NAMESPACE}::{op}", device.upper(), kernel)
        self.op = getattr(getattr(torch.ops, NAMESPACE), name)
        self.op_backward = getattr(getattr(torch.ops, NAMESPACE), f"{name}_backward")

        for device in ("CPU", "CUDA"):
            torch.library.impl(f"{NAMESPACE}::{name}", f"Autocast{device}", self._run_cast)
        torch.library.register_fake(f"{NAMESPACE}::{name}", form.trace)
        torch.library.register_fake(f"{NAMESPACE}::{name}_backward", self._fake_backward)
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", self._differentiate_op, setup_context=self.save
        )
        torch.library.register_autograd(f"{NAMESPACE}::{name}_backward", _refuse)
        register_flop_formula(self.op, get_raw=True)(form.flops)
        register_flop_formula(self.op_backward, get_raw=True)(form.count_backward)

    def __call__(self, *inputs: Any) -> Any:
        """The result, and the sums where the operator gives them; the terms come last."""
        q = inputs[0]
        watched = is_compiling() or torch._C._len_torch_dispatch_stack() or _get_tracing_state()
        device = _kind(q)
        known = device in self.kernels and _ORDINARY.issuperset(map(type, inputs[:5]))
        if watched or not known:
            return self.op(*self.form.flatten(inputs))
        if _is_autocast(device):
            with torch.autocast(device, enabled=False):
                return self(*inputs)
        if forward_ad._current_level >= 0:
            _refuse_jvp()
        if torch._C._are_functorch_transforms_active():
            return _AttendTransformed.apply(self, *inputs)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs[:5]):
            return _Attend.apply(self, *inputs)
        return self._run_on(device, *inputs)

    def run(self, *inputs: Any) -> Any:
        """The result; the kernels get tensors without a word of autograd on them."""
        num = self.num_tensors
        tensors = [None if x is None else x.detach() for x in inputs[:num]]
        return self._run_on(_kind(inputs[0]), *tensors, *inputs[num:])

    def _run_on(self, device: str, *inputs: Any) -> Any:
        results = self.kernels[device]().run(self.has_sums, *inputs)
        return tuple(results) if self.has_sums else results[0]

    def run_backward(self, do: Tensor, *inputs: Any) -> list[Tensor]:
        """The gradients, where autograd does not look on."""
        num = 3 if self.has_sums else 0
        return self.kernels[_kind(do)]().run_backward(inputs[:num], do, *inputs[num:])

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep for backward what the caller gave: no weights, no statistics.

        Of the output nothing either, unless it was divided by the sums.
        """
        tensors = inputs[: self.num_tensors]
        ctx.others = inputs[self.num_tensors :]
        if self.has_sums:
            ctx.set_materialize_grads(False)
            tensors = (*tensors, *(output if self._divides(ctx.others) else (None, None)))
        ctx.save_for_backward(*tensors)

    def _divides(self, others: tuple[Any, ...]) -> bool:
        """True where the result is one of sums; the terms are one or field by field."""
        terms = others[-1] if isinstance(others[-1], Terms) else Terms(*others[-_NUM_TERMS:])
        return terms.normalize == "sum"

    def grads_and_tensors(self, ctx: Any, grads: tuple[Any, ...]) -> list[Any]:
        """What backward begins with: gradients of the results, results kept, the inputs."""
        do, *rest = grads
        saved = ctx.saved_tensors  # asked once: checkpointing makes them again for it
        tensors, kept = saved[: self.num_tensors], saved[self.num_tensors :]
        if do is None:  # of the sums alone
            do = torch.zeros_like(self.form.fake(*tensors))
        return [do, *rest, *kept, *tensors]

    def _run_cast(self, *inputs: Any) -> Any:
        """Autocast's part for whoever calls the operator itself."""
        num = self.form.num_cast
        cast = cast_for_autocast(*inputs[:num])
        with torch.autocast(inputs[0].device.type, enabled=False):
            return self.op(*cast, *inputs[num:])

    def _run_flat(self, *inputs: Any) -> Any:
        gathered = self.form.gather(inputs)
        if not self.has_sums and (gathered[-1].normalize == "sum" or gathered[-1].logs):
            raise UnsupportedError(
                f"{self.op} gives no sums and divides by none. Call {self.op}_sums."
            )
        with _outside_autocast(inputs[0]):
            return self.run(*gathered)

    def _run_backward_flat(self, do: Tensor, *inputs: Any) -> list[Tensor]:
        *rest, need_dbias, need_dmask = inputs
        with _outside_autocast(do):
            return self.run_backward(do, *self.form.gather(rest), need_dbias, need_dmask)

    def _fake_backward(self, *inputs: Any) -> list[Tensor]:
        *_, need_dbias, need_dmask = inputs
        wanted = (True, True, True, need_dbias, need_dmask)
        pairs = zip(inputs[4 if self.has_sums else 1 :], wanted, strict=False)
        return [x.new_empty(x.shape) for x, want in pairs if want and x is not None]

    def _differentiate_op(self, ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return _differentiate(self, ctx, grads, ctx.needs_input_grad[3:5], self.op_backward)


class _Attend(torch.autograd.Function):
    """What ``register_autograd`` gives an operator, for calls past the dispatcher."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Any:
        ctx.operator = operator
        output = operator._run_on(_kind(inputs[0]), *inputs)  # autograd is off here
        operator.save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward_past_dispatcher(ctx, grads)


class _Untransformed(torch.autograd.Function):
    """What torch.func may call and neither push forward nor vmap."""

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        _refuse_jvp()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *_: Any) -> None:
        _refuse_vmap()


class _AttendTransformed(_Untransformed):
    """The same in the form that torch.func asks for, which takes twice as long to call."""

    @staticmethod
    def forward(operator: Operator, *inputs: Any) -> Any:
        return operator.run(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = inputs[0]
        ctx.operator.save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward_past_dispatcher(ctx, grads)


class _AttendBackward(_Untransformed):
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


def _backward_past_dispatcher(ctx: Any, grads: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    given = [grad for grad in grads if grad is not None]
    if not given:
        return (None,) * (1 + ctx.operator.num_tensors + len(ctx.others))
    if _is_autocast(kind := _kind(given[0])):
        with torch.autocast(kind, enabled=False):
            return _backward_past_dispatcher(ctx, grads)
    run = ctx.operator.run_backward
    if torch.is_grad_enabled():
        run = partial(_AttendBackward.apply, ctx.operator)
    return None, *_differentiate(ctx.operator, ctx, grads, ctx.needs_input_grad[4:6], run)


def _kind(x: Tensor) -> str:
    """The type of a tensor's device; asking it for the usual two is the shortest way."""
    return "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type


def _is_autocast(kind: str) -> bool:
    """True where autocast is on for a type of device; mostly it is for none."""
    return torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(kind)


def _outside_autocast(x: Tensor) -> AbstractContextManager[Any]:
    kind = _kind(x)
    return torch.autocast(kind, enabled=False) if _is_autocast(kind) else nullcontext()


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


def _differentiate(
    operator: Operator,
    ctx: Any,
    grads: tuple[Any, ...],
    needs: tuple[bool, bool],
    run: Callable[..., Any],
) -> tuple[Tensor | None, ...]:
    """One gradient or None for each input; ``needs`` says whether bias and mask want theirs."""
    inputs, others = operator.grads_and_tensors(ctx, grads), ctx.others
    tensors = inputs[-operator.num_tensors :]
    made = iter(run(*inputs, *others, *needs))
    wanted = (*[x is not None for x in tensors[:3]], *needs)
    rest = len(tensors) + len(others) - len(wanted)
    return *[next(made) if want else None for want in wanted], *[None] * rest
