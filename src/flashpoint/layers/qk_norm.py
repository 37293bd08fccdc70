"""Norms of q and k over the head dim, as modules and as the packed operator takes them."""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from flashpoint.errors import check_choice
from flashpoint.ops.qk_norm import HeadNorm
from flashpoint.shapes import Float

QkNorm = Literal["none", "layer", "rms"]

QK_NORMS = ("none", "layer", "rms")
NORM_EPS = 1e-6


class RMSNorm(nn.RMSNorm):
    """RMSNorm in the dtype of its weight, as autocast has it for LayerNorm but not for this."""

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """x over its root mean square, times the weight."""
        return super().forward(x.to(self.weight.dtype))


NormLayer = Callable[[int], nn.Module]
"""Makes a norm of a width, as timm's constructors take it."""


def make_norm(kind: str | bool, head_dim: int, norm_layer: NormLayer | None = None) -> nn.Module:
    """A module for "layer", "rms" or "none", scale only; for True, what ``norm_layer`` makes."""
    if isinstance(kind, bool):
        if kind and norm_layer is not None:
            return norm_layer(head_dim)
        kind = "layer" if kind else "none"
    check_choice("qk_norm", kind, QK_NORMS)
    if kind == "layer":
        return nn.LayerNorm(head_dim, eps=NORM_EPS, bias=False)
    return RMSNorm(head_dim, eps=NORM_EPS) if kind == "rms" else nn.Identity()


def is_head_norm(norm: Any, head_dim: int) -> bool:
    """Whether the operator computes what this norm, or whatever took its place, would.

    Not where it has a bias, an arithmetic of its own (a subclass) or hooks that want to be called.
    """
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
        return False
    if type(norm) is nn.Identity:
        return True
    known = type(norm) in (nn.LayerNorm, RMSNorm) and getattr(norm, "bias", None) is None
    return known and norm.normalized_shape == (head_dim,) and norm.eps is not None


def head_norm_of(norm: Any) -> HeadNorm | None:
    """A norm that ``is_head_norm``, as the operator takes it."""
    if isinstance(norm, nn.Identity):
        return None
    return HeadNorm("layer" if isinstance(norm, nn.LayerNorm) else "rms", norm.weight, norm.eps)
