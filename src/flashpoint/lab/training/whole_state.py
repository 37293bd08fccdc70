"""Weights and moments as whole tensors by name, whatever part of them a process has."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.training.sharing import Shared, whole

Tensors = dict[str, Tensor]


def gather_state(model: Shared, optimizer: torch.optim.Optimizer) -> tuple[Tensors, Tensors]:
    """Weights and the optimizer's tensors by name, on the CPU; empty but in the first process.

    Whole tensors, so that any number of processes can go on from them.
    """
    weights = model.module.state_dict()
    return _gather(model, weights), _gather(model, named_moments(model, optimizer))


def named_moments(model: Shared, optimizer: torch.optim.Optimizer) -> Tensors:
    """The optimizer's tensors as this process has them, by name: "a.weight.exp_avg"."""
    return {
        f"{name}.{kind}": tensor
        for name, parameter in model.module.named_parameters()
        for kind, tensor in optimizer.state.get(parameter, {}).items()
    }


def restore_state(
    model: Shared, optimizer: torch.optim.Optimizer, weights: Tensors, moments: Tensors
) -> None:
    """Take what ``gather_state`` gave, from the first process."""
    targets = model.module.state_dict()
    for name, tensor in _receive(model, weights):
        if name not in targets:
            raise RunError(f"the checkpoint has {name}, and the model has no such weight.")
        _fill(targets.pop(name), tensor)
    if targets:
        raise RunError(f"the checkpoint has no {next(iter(targets))}, which the model has.")
    parameters = dict(model.module.named_parameters())
    for name, tensor in _receive(model, moments):
        owner, _, kind = name.rpartition(".")
        if owner in parameters:  # of a weight with two names, one
            is_number = not tensor.dim()
            _fill(make_moment(optimizer, parameters[owner], kind, is_number=is_number), tensor)


def make_moment(
    optimizer: torch.optim.Optimizer, parameter: Tensor, kind: str, *, is_number: bool
) -> Tensor:
    """Room for an optimizer's tensor: one number, or as large as this process' parameter."""
    made = torch.zeros((), device=parameter.device) if is_number else torch.zeros_like(parameter)
    optimizer.state[parameter][kind] = made
    return made


def _gather(model: Shared, tensors: Mapping[str, Tensor]) -> Tensors:
    """One after another, so that no device holds more than one whole tensor besides its own."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        one = whole(tensor.detach())
        one = one if model.heads is None else model.heads.join(name, one)
        if model.ranks.is_first:
            found[name] = one.cpu()
    return found


def _receive(model: Shared, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The first process' tensors, this process' heads of each, on the device."""
    ranks = model.ranks
    about = {n: (list(x.shape), str(x.dtype).removeprefix("torch.")) for n, x in tensors.items()}
    for name, (shape, dtype) in json.loads(ranks.share_text(json.dumps(about))).items():
        if ranks.is_first:
            one = tensors[name].to(ranks.device)
        else:
            one = torch.empty(shape, dtype=getattr(torch, dtype), device=ranks.device)
        if ranks.size > 1:
            one = one.contiguous()
            dist.broadcast(one, 0)
        yield name, one if model.heads is None else model.heads.cut(name, one)


@torch.no_grad()
def _fill(target: Tensor, value: Tensor) -> None:
    """A value into a tensor that may be spread over the replicas, each of which has the value."""
    if hasattr(target, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        spread = cast("Any", target)
        value = distribute_tensor(value, spread.device_mesh, spread.placements, src_data_rank=None)
    target.copy_(value)
