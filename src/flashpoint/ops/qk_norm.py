"""Norms of q and k over the head dim: what a caller asks for, its arithmetic, its gradient."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import InputError, check_choice, describe
from flashpoint.ops.check import check_number
from flashpoint.shapes import Float

NormKind = Literal["layer", "rms"]

NORM_KINDS = ("layer", "rms")
SMALLEST_EPS = 2.0**-126  # below it fp32 may see 0, and rows of zeros become NaN
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class HeadNorm:
    """A norm over the head dim for ``attention_qkvpacked``, without a bias.

    Attributes:
        kind: "layer", (x - mean) / sqrt(variance + eps), or "rms", x / sqrt(mean square + eps).
        gain: factors behind it, one for each place in a head; has a gradient. None: all are 1.
        eps: keeps the root of a row without spread away from zero.

    Example:
        >>> HeadNorm("rms", gain=torch.ones(64)).eps
        1e-06
    """

    kind: NormKind
    gain: Float[Tensor, " D"] | None = None
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, NORM_KINDS)
        if self.gain is not None and not isinstance(self.gain, Tensor):
            raise InputError(f"gain must be a tensor or None. Got {describe(self.gain)}.")
        if check_number("eps", self.eps) < SMALLEST_EPS:
            raise InputError(f"eps must be at least {SMALLEST_EPS:.2g}. Got {self.eps}.")


def normalize(
    x: Float[Tensor, "... D"], kind: str, gain: Float[Tensor, " D"] | None, eps: float
) -> Float[Tensor, "... D"]:
    """The norm in fp32 (fp64 for fp64), rounded once to x's dtype, in which products take it."""
    if kind == "none":
        return x
    wide = _widened(x)
    norm = F.layer_norm if kind == "layer" else F.rms_norm
    gain = None if gain is None else gain.to(wide.dtype)
    return norm(wide, x.shape[-1:], gain, eps=eps).to(x.dtype)


def normalize_backward(
    dy: Float[Tensor, "... D"],
    x: Float[Tensor, "... D"],
    kind: str,
    gain: Float[Tensor, " D"] | None,
    eps: float,
) -> tuple[Float[Tensor, "... D"], Float[Tensor, " D"] | None]:
    """The gradients of x and of the gain, in fp32 (fp64 for fp64) and not yet rounded.

    With y = gain * u and u = r x ("layer", for which PyTorch has a kernel, takes means away too):
    dgain = sum of dy * u, dx = r (g - u mean(g * u)), g = gain * dy.
    """
    if kind == "none":
        return dy, None
    x, g = _widened(x), _widened(dy)
    gain = None if gain is None else gain.to(g.dtype)
    if kind == "layer":
        dim = x.shape[-1:]
        _, mean, r = torch.native_layer_norm(x, dim, None, None, eps)
        wanted = [True, gain is not None, False]
        dx, dgain, _ = aten.native_layer_norm_backward(g, x, dim, mean, r, gain, None, wanted)
        return dx, dgain
    r = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    u = x * r
    dgain = None if gain is None else (g * u).flatten(0, -2).sum(0)
    g = g if gain is None else g * gain
    return torch.addcmul(g, u, (g * u).mean(-1, keepdim=True), value=-1).mul_(r), dgain


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
