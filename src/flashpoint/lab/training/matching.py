"""A softmax model's attention layers and those of one with other attention, side by side.

The student's layers are compared with the teacher's on the teacher's own inputs, so no layer
inherits the errors of those below it, and all can be adapted at once. What a kind of model calls
its layers and their weights is said by ``Layers``: ``vit_layers.py``, ``gpt2_layers.py``.

Shapes: B samples, L tokens, E width.
"""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter that makes weights of attention, or the first entries of one along a dim.

    Attributes:
        parameter: that learns.
        dim: along which it learns only up to
        count: so many entries; None: all.
    """

    parameter: nn.Parameter
    dim: int = 0
    count: int | None = None


class Layers(Protocol):
    """The layers of a kind of model that are adapted."""

    def of(self, model: Any) -> list[nn.Module]:
        """Those of a model, in order: the same ones of teacher and student."""
        ...

    def call(self, model: Any, inputs: Tensor) -> None:
        """Let a model read some inputs."""
        ...

    def parts(self, layer: Any) -> list[Part]:
        """What matching trains of a layer."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a layer: its arguments, and what it gave, [B, L, E]."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    def ask(self, layer: nn.Module) -> Tensor:
        """What another layer gives for the same arguments."""
        return _first(layer(*self.args, **self.kwargs))


@torch.no_grad()
def layer_errors(kind: Layers, teacher: Any, student: Any, inputs: Tensor) -> list[float]:
    """How far each attention layer's output is from the teacher's, on the teacher's inputs.

    Squared distance over the squared size of the teacher's: 0 is equal, 1 is as far as zeros.
    """
    errors: list[float] = []
    for layer, asked in zip(kind.of(student), listen(kind, teacher, inputs), strict=True):
        wanted = asked.output.double()
        distance = (asked.ask(layer).double() - wanted).square().sum()
        errors.append(float(distance / wanted.square().sum()))
    return errors


def match_layers(
    kind: Layers, teacher: Any, student: Any, batches: Iterator[Tensor], *, steps: int, lr: float
) -> Generator[tuple[int, float]]:
    """Train q, k and the learned numbers of every layer towards the teacher's output.

    Values, projections and everything outside attention stay.

    Args:
        kind: of both models.
        teacher: computes softmax.
        student: calibrated.
        batches: inputs, at least as many as steps.
        steps: updates by AdamW without decay.
        lr: falls to 0 along a cosine.

    Yields:
        The number of each step and the mean error of the layers before it.
    """
    layers = kind.of(student)
    with _only_parts([part for layer in layers for part in kind.parts(layer)]) as parameters:
        optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            errors: list[Tensor] = []
            for layer, asked in zip(layers, listen(kind, teacher, next(batches)), strict=True):
                wanted = asked.output.float()
                distance = (asked.ask(layer).float() - wanted).square().mean()
                errors.append(distance / wanted.square().mean())
            optimizer.zero_grad(set_to_none=True)
            error = torch.stack(errors).mean()
            error.backward()
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            if norm.isfinite():
                optimizer.step()
            yield step + 1, float(error.detach())
    for layer in layers:
        layer.zero_grad(set_to_none=True)


def listen(kind: Layers, teacher: Any, inputs: Tensor) -> list[Asked]:
    """What every attention layer of the teacher reads and gives."""
    heard: list[Asked] = []

    def write(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        heard.append(Asked(args, kwargs, _first(output).detach()))

    hooks = [layer.register_forward_hook(write, with_kwargs=True) for layer in kind.of(teacher)]
    try:
        with torch.no_grad():
            kind.call(teacher, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return heard


def _first(output: Any) -> Tensor:
    """A layer's output; some libraries' layers give weights beside it."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def _only_parts(parts: list[Part]) -> Generator[list[nn.Parameter]]:
    """The parameters of parts; their other entries get no gradient."""
    hooks = [
        part.parameter.register_hook(_keeper(part.dim, part.count))
        for part in parts
        if part.count is not None
    ]
    try:
        yield [part.parameter for part in parts]
    finally:
        for hook in hooks:
            hook.remove()
        for part in parts:
            part.parameter.grad = None


def _keeper(dim: int, count: int) -> Any:
    """A hook that keeps the gradient of the first entries along a dim alone."""

    def keep(gradient: Tensor) -> Tensor:
        kept = torch.zeros_like(gradient)
        kept.narrow(dim, 0, count).copy_(gradient.narrow(dim, 0, count))
        return kept

    return keep
