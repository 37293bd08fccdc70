"""Low-rank updates (arXiv 2106.09685): kernels stay, and what is learned is added to them.

A checkpoint of such a run has the kernel and both factors, so that training can go on from it.
Whoever opens the run gets plain weights: ``merged``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from flashpoint.shapes import Float

_PARTS = ".parametrizations.weight."


class LowRank(nn.Module):
    """W + b a, with a from a normal and b from zero.

    Args:
        kernel: W, of which shape and device are read.
        rank: of the product.
    """

    def __init__(self, kernel: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = kernel.shape
        a = torch.empty(rank, columns, device=kernel.device, dtype=kernel.dtype)
        self.a = nn.Parameter(a.normal_(std=columns**-0.5))
        self.b = nn.Parameter(torch.zeros(rows, rank, device=a.device, dtype=a.dtype))

    def forward(self, kernel: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """The kernel with its update."""
        return kernel + self.b @ self.a


def add_low_rank(model: nn.Module, rank: int, blocks: str = "blocks.") -> None:
    """Let kernels in a model's blocks learn updates of a rank, and no other kernel anything.

    Biases, norms and learned numbers go on learning.

    Args:
        model: whose kernels are weights of two dims, as those of ``nn.Linear``.
        rank: of the updates.
        blocks: how the names of what is in blocks begin.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.ndim == 1 and not name.startswith("head."))
    for name, module in model.named_modules():
        kernel = module._parameters.get("weight") if name.startswith(blocks) else None
        if kernel is not None and kernel.ndim == 2:
            parametrize.register_parametrization(module, "weight", LowRank(kernel, rank))


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain weights of a model that may have learned by low-rank updates; others as they are.

    Example:
        >>> layer = nn.Sequential(nn.Linear(3, 2))
        >>> kernel = layer[0].weight.clone()
        >>> _ = parametrize.register_parametrization(layer[0], "weight", LowRank(kernel, 1))
        >>> list(merged(layer.state_dict())) == ["0.bias", "0.weight"]
        True
    """
    plain = {name: weight for name, weight in weights.items() if _PARTS not in name}
    for name, kernel in weights.items():
        module, part, which = name.partition(_PARTS)
        if part and which == "original":
            a, b = (weights[f"{module}{_PARTS}0.{factor}"] for factor in "ab")
            plain[f"{module}.weight"] = kernel + b @ a
    return plain
