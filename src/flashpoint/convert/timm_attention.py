"""timm's attention modules, whose own forward runs on with another attention in SDPA's place.

timm writes every attention twice, by ``F.scaled_dot_product_attention`` and by hand, and a flag
``fused_attn`` chooses. A served module always takes the first, and that one call goes to its
substitute. So whatever else a version of timm computes there (norms, gates, rotary positions,
biases) stays timm's. timm itself is never imported: classes are known by their full names.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from flashpoint.convert.sites import Found, Served, ServedSite, Site, original_class, path_of
from flashpoint.convert.substitute import Substitute
from flashpoint.errors import UnsupportedError


class Rerouted(TorchFunctionMode):
    """While it is entered, calls of PyTorch's SDPA go elsewhere.

    Args:
        attend: takes SDPA's arguments.
    """

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What PyTorch calls for every function of its own."""
        if func is F.scaled_dot_product_attention:
            func = self.attend
        return func(*args, **(kwargs or {}))


class TimmAttention(Served):
    """A module of timm's that computes its attention by its substitute."""

    substitute: Substitute

    @property
    def fused_attn(self) -> bool:
        """True: the way by SDPA is the one that can be changed."""
        return True

    @fused_attn.setter
    def fused_attn(self, value: bool) -> None:
        if not value:
            raise UnsupportedError(
                "fused_attn=False asks timm for softmax weights, which a replaced module does not "
                "compute. Call flashpoint.restore_attention(model) first."
            )

    def forward(self, *args: Any, **options: Any) -> Tensor:
        """As the original class, but for its call of SDPA."""
        calls: list[torch.Size] = []

        def attend(query: Tensor, *args: Any, **options: Any) -> Tensor:
            calls.append(query.shape)
            return self.substitute(query, *args, **options)

        with Rerouted(attend):
            result = super().forward(*args, **options)
        if len(calls) != 1:
            raise UnsupportedError(
                f"{path_of(self.original)} called scaled_dot_product_attention {len(calls)} "
                "times, and once is served. Restore it, and leave it out by layers=."
            )
        return result


class TimmWindowAttention(TimmAttention):
    """Swin's windows: what their mask adds -100 to is hidden, and does not count as a key."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """As the original class, for windows [B * windows, L, E] and masks [windows, L, L]."""
        if mask is not None:
            mask = mask.masked_fill(mask < 0, -torch.inf)
        return super().forward(x, mask)


class TimmSite(ServedSite):
    """One of timm's modules."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.first = _FIRST.get(self.kind, TimmAttention)

    @property
    def dropout(self) -> float:
        """timm's ``attn_drop``; attention pools have none."""
        return float(getattr(getattr(self.module, "attn_drop", None), "p", 0.0))

    @property
    def dropout_advice(self) -> str:
        """timm's own word for it."""
        return "build the model with attn_drop_rate=0, or set the module's attn_drop.p to 0"


KNOWN = frozenset(
    {
        "timm.layers.attention.Attention",  # vit, deit, deit3, dinov2, siglip, clip
        "timm.models.vision_transformer.Attention",  # the same in older versions
        "timm.models.vision_transformer.ParallelScalingBlock",  # a whole block, of vit_*_xp
        "timm.layers.attention.AttentionRope",
        "timm.layers.attention_pool.AttentionPoolLatent",  # siglip's pooling
        "timm.models.beit.Attention",
        "timm.models.eva.EvaAttention",
        "timm.models.swin_transformer.WindowAttention",
        "timm.models.vision_transformer_relpos.RelPosAttention",
    }
)
_FIRST = {"timm.models.swin_transformer.WindowAttention": TimmWindowAttention}


def find(model: nn.Module) -> Found:
    """timm's attention modules in any model."""
    sites: list[Site] = []
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        original = original_class(module)
        if path_of(original) not in KNOWN:
            continue
        reason = _why_not(module, original)
        if reason is None:
            sites.append(TimmSite(name, module))
        else:
            left[name] = reason
    return Found(sites=tuple(sites), left=left)


def _why_not(module: nn.Module, original: type[nn.Module]) -> str | None:
    """Why a module of a known class cannot be served after all; None: it can."""
    if "forward" in vars(module):
        return "somebody gave this instance a forward of its own"
    code = getattr(original.forward, "__code__", None)
    if code is None or "scaled_dot_product_attention" not in code.co_names:
        return "its forward, in this version of timm, does not call scaled_dot_product_attention"
    return None
