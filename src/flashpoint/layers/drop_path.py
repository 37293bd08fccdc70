"""Stochastic depth: in training a residual branch is left out for some samples."""

from torch import Tensor, nn

from flashpoint.shapes import Float


class DropPath(nn.Module):
    """Drops a branch for each sample with a probability, and scales it up for the others.

    As timm's of the same name, number for number: torch's generator decides.

    Args:
        rate: the probability, from 0 to below 1.

    Example:
        >>> import torch
        >>> branch = DropPath(0.5)(torch.ones(64, 3, 8))
        >>> sorted({*branch.flatten().tolist()})
        [0.0, 2.0]
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """A branch's output; as it is where nobody trains."""
        if not self.training or self.rate == 0.0:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(1.0 - self.rate)
        return x * kept.div_(1.0 - self.rate)

    def extra_repr(self) -> str:
        """The probability, for ``print(model)``."""
        return f"rate={self.rate:g}"
