"""A model among the processes of a run: alone, DDP or FSDP2; and its state as whole tensors."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.training.config import TrainConfig
from flashpoint.lab.training.ranks import Ranks


def check_sharing(config: TrainConfig, ranks: Ranks) -> None:
    """Refuse a batch that cannot be shared out evenly, and graphs where there are none."""
    parts = ranks.size * config.accumulate
    if config.batch_size % parts:
        raise InputError(
            f"batch_size={config.batch_size} must be a multiple of processes times accumulate, "
            f"{ranks.size} x {config.accumulate} = {parts}."
        )
    if config.is_captured and (ranks.device.type != "cuda" or ranks.size > 1):
        raise UnsupportedError(
            f"compile={config.compile!r} needs one process on a GPU, not {ranks.size} on "
            f"{ranks.device.type}. Pass --set compile=default or --set compile=none."
        )


class Shared:
    """A model on its device, with gradients averaged over all processes.

    Attributes:
        module: the model itself, for validation and state.
        forward: what training calls: wrapped and compiled as asked.
        ranks: the processes.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, *, parallel: str, compiled: bool) -> None:
        self.ranks = ranks
        self.module = model.to(ranks.device)
        self._ddp: DistributedDataParallel | None = None
        if ranks.size > 1 and parallel == "fsdp":
            _shard(self.module, ranks)
        elif ranks.size > 1:
            self._ddp = DistributedDataParallel(self.module)
        wrapped = self.module if self._ddp is None else self._ddp
        self.forward: Callable[..., Tensor] = torch.compile(wrapped) if compiled else wrapped

    @contextmanager
    def gradients(self, *, are_complete: bool) -> Generator[None]:
        """Around forward and backward of a part: processes meet after the last part only."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(are_complete)
        if self._ddp is None or are_complete:
            yield
        else:
            with self._ddp.no_sync():
                yield

    @staticmethod
    def whole(tensor: Tensor) -> Tensor:
        """A tensor that may be spread over the processes, in one piece."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def state(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], ...]:
        """Weights and optimizer's tensors by name, on the CPU; empty but in the first process.

        Whole tensors, so that any number of processes can go on from them.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model = get_model_state_dict(self.module, options=options)
        state: dict[str, Any] = get_optimizer_state_dict(self.module, optimizer, options=options)
        moments = {
            f"{name}.{kind}": tensor
            for name, tensors in state.get("state", {}).items()
            for kind, tensor in tensors.items()
        }
        return cast("dict[str, Tensor]", model), moments

    def restore(
        self,
        optimizer: torch.optim.Optimizer,
        weights: dict[str, Tensor],
        moments: dict[str, Tensor],
    ) -> None:
        """Take what ``state`` gave, from the first process."""
        several = self.ranks.size > 1
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several)
        set_model_state_dict(self.module, cast("Any", weights), options=options)
        fresh = get_optimizer_state_dict(self.module, optimizer)
        state: dict[str, dict[str, Tensor]] = {}
        for name, tensor in moments.items():
            parameter, _, kind = name.rpartition(".")
            state.setdefault(parameter, {})[kind] = tensor
        content = cast("Any", {"state": state, "param_groups": fresh["param_groups"]})
        set_optimizer_state_dict(self.module, optimizer, content, options=options)
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros((), device=self.ranks.device)  # whatever became of it


def _shard(model: nn.Module, ranks: Ranks) -> None:
    """Spread the weights: every layer of every list by itself, then what is left."""
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
