"""AdamW as the recipes want it, able to leave a step out without asking the host."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from flashpoint.lab.training.config import OptimizerConfig


def decays(name: str, parameter: Tensor, owner: nn.Module) -> bool:
    """Whether weight decay acts on a parameter: on kernels only.

    Not on biases, norms, learned numbers, class tokens and positions, nor on embeddings.
    """
    return name == "weight" and parameter.ndim >= 2 and not isinstance(owner, nn.Embedding)


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters with and without decay, each once.

    Example:
        >>> kernels, others = split_by_decay(nn.Linear(2, 3))
        >>> [list(p.shape) for p in kernels], [list(p.shape) for p in others]
        ([[3, 2]], [[3]])
    """
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in seen and parameter.requires_grad:
                seen.add(parameter)
                groups[0 if decays(name, parameter, module) else 1].append(parameter)
    return groups


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, device: torch.device, *, captured: bool
) -> torch.optim.AdamW:
    """The fused AdamW, its learning rate a tensor that ``set_rate`` fills.

    Args:
        model: its parameters are final: sharded already, on their device.
        config: rates and decay.
        device: where the learning rate lives.
        captured: whether ``step`` will be part of a CUDA graph.
    """
    kernels, others = split_by_decay(model)
    optimizer = torch.optim.AdamW(
        [
            {"params": kernels, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=torch.zeros((), device=device),
        betas=config.betas,
        fused=True,
        capturable=captured,
    )
    details = cast("Any", optimizer)
    # What GradScaler sets: the fused kernel changes nothing, not even its count, where it is 1.
    details.found_inf = torch.zeros((), device=device)
    details._warned_capturable_if_run_uncaptured = True  # rehearsals are not captured
    return optimizer


def set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Set the learning rate of all groups, without a new tensor."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


def skip_if(optimizer: torch.optim.AdamW, bad: Tensor) -> None:
    """Make the next ``step`` leave weights and state as they are where ``bad`` is true."""
    cast("Any", optimizer).found_inf.copy_(bad)
