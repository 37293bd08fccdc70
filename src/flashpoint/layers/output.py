"""What may stand between attention's sum of values and its last projection: a norm, a gate."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.errors import check_choice
from flashpoint.layers.qk_norm import NORM_EPS, NormLayer, RMSNorm, make_norm
from flashpoint.shapes import Float

Gate = Literal["none", "sigmoid", "silu", "identity"]
OutputNorm = Literal["none", "layer", "rms", "gated_rms"]

GATES = ("none", "sigmoid", "silu", "identity")
OUTPUT_NORMS = ("none", "layer", "rms", "gated_rms")


class GatedRMSNorm(RMSNorm):
    """ReLA's norm (arXiv 2104.07012): x over its root mean square, times sigmoid(weight * x).

    The weight starts at zero, which is a factor of one half; the paper does not say where. The
    sum of relu's weights grows with the keys, and a gate that starts sharp would be on or off.
    """

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew: a gate that is half open."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "... E"]) -> Float[Tensor, "... E"]:
        """The norm, then the gate."""
        x = x.to(self.weight.dtype)
        return F.rms_norm(x, self.normalized_shape, None, self.eps) * torch.sigmoid(
            self.weight * x
        )


def make_output_norm(kind: str | bool, dim: int, norm_layer: NormLayer | None = None) -> nn.Module:
    """A module for "layer" or "rms", scale only, "gated_rms" or "none"; True as for qk_norm."""
    if isinstance(kind, bool):
        return make_norm(kind, dim, norm_layer)
    check_choice("output_norm", kind, OUTPUT_NORMS)
    if kind == "layer":
        return nn.LayerNorm(dim, eps=NORM_EPS, bias=False)
    if kind == "none":
        return nn.Identity()
    return (RMSNorm if kind == "rms" else GatedRMSNorm)(dim, eps=NORM_EPS)


def activate_gate(x: Tensor, kind: str) -> Tensor:
    """What the output is multiplied by, from the gate's projection."""
    if kind == "identity":
        return x
    return x.sigmoid() if kind == "sigmoid" else F.silu(x)
