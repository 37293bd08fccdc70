"""What computes attention at one place of somebody else's model, where softmax was.

Shapes: B batch, H query heads, Hkv key heads, Lq queries, Lk keys, D head dim.
"""

import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.errors import UnsupportedError
from flashpoint.layers.softmax import refuse_shards
from flashpoint.layers.spec import SOFTMAX, AnySpec
from flashpoint.layers.terms import PointwiseTerms, power
from flashpoint.layers.visibility import Visibility, is_sharded, visibility_of
from flashpoint.ops.check import known_layout
from flashpoint.ops.sdpa import current_attend, scaled_dot_product_attention
from flashpoint.shapes import Float

HIDES_FROM = -5_000.0
"""Numbers of an added mask that hide a key, from here down. Models write -10000, -1e9 or their
dtype's least number for it, and softmax gives such keys no weight; here they must not count in n_i
either."""


class Substitute(PointwiseTerms):
    """Attention by a spec, with the arguments of PyTorch's scaled_dot_product_attention.

    It is a child of the module that it serves, so that it moves and trains with it. It has
    parameters, and the model's state dict new keys, only where the spec learns something or
    ``learns_scale`` is set.

    Args:
        spec: the mathematics, or its short word; "softmax" goes to PyTorch's SDPA.
        num_heads: H, the entries of what is learned per head.
        learns_scale: multiply q by one parameter a head, which starts at 1.

    Example:
        >>> attend = Substitute("relu4/sum", num_heads=4)
        >>> q = torch.randn(2, 4, 10, 16)
        >>> attend(q, q, q, is_causal=True).shape, list(attend.state_dict())
        (torch.Size([2, 4, 10, 16]), [])
    """

    scale: nn.Parameter | None

    def __init__(self, spec: AnySpec, num_heads: int, *, learns_scale: bool = False) -> None:
        super().__init__(spec, num_heads)
        scale = nn.Parameter(torch.empty(num_heads)) if learns_scale else None
        self.register_parameter("scale", scale)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Learned numbers at their starts."""
        super().reset_parameters()
        if self.scale is not None:
            nn.init.ones_(self.scale)

    def forward(
        self,
        query: Float[Tensor, "B H Lq D"],
        key: Float[Tensor, "B Hkv Lk D"],
        value: Float[Tensor, "B Hkv Lk Dv"],
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Float[Tensor, "B H Lq Dv"]:
        """As SDPA: bool masks or masks that are added, causality from the first tokens.

        A pointwise spec takes -5000 and less in an added mask for -inf.
        """
        if query.dim() != 4:
            raise UnsupportedError(
                f"query has shape {list(query.shape)}; a substitute for attention takes "
                "[B, H, L, D] alone, since what it learns is by heads."
            )
        if self.scale is not None:
            query = (query * self.scale.view(-1, 1, 1)).to(query.dtype)
        given: dict[str, Any] = {
            "attn_mask": attn_mask,
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "scale": self.scale_of(scale),
            "enable_gqa": enable_gqa,
        }
        if self.spec.activation == SOFTMAX:
            refuse_shards(current_attend())
            return F.scaled_dot_product_attention(query, key, value, **given)
        if dropout_p > 0:
            _refuse_dropout(dropout_p)
        given["attn_mask"] = attn_mask = _hiding(attn_mask)
        n = self._length_of(query, key, attn_mask, is_causal) if self._needs_length else 1.0
        with nullcontext() if torch.compiler.is_compiling() else known_layout():
            o = scaled_dot_product_attention(
                query, key, value, **given, bias=self._bias(n), **self._division()
            )
        if self.alpha is not None:  # a fixed exponent of 1 keeps the output within fp16's range
            return (o * (self._gain() * power(n, 1.0 - self._alpha()))).to(o.dtype)
        gain = self._outer_gain
        return o if gain is None else (o * gain).to(o.dtype)

    def scale_of(self, given: float | None) -> float | None:
        """The factor on q . k of a call that gives one: the spec's own comes first."""
        return given if self.spec.scale is None else self.spec.scale

    def _division(self) -> dict[str, Any]:
        """What the operator is told of the spec."""
        spec = self.spec
        options: dict[str, Any] = {"activation": spec.activation, "length": spec.length}
        if spec.by_sum:
            return options | {"normalize": spec.normalize, "floor": spec.floor}
        return options | {"alpha": 1.0 if self.alpha is not None else spec.alpha}

    def _length_of(self, q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Any:
        """n_i of a call with SDPA's arguments."""
        mask = attn_mask
        if mask is not None and mask.dtype != torch.bool:
            mask = mask != -math.inf
        attend = current_attend()
        if is_sharded(attend):
            n = self._length(
                visibility_of(attend, q, k, mask, is_causal, None, from_first=is_causal)
            )
            return n.to(torch.promote_types(n.dtype, q.dtype)) if isinstance(n, Tensor) else n
        if is_causal and q.shape[-2] != k.shape[-2]:  # SDPA counts from the first tokens
            mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            is_causal = False
        n = self._length(Visibility.of(q, k, mask, is_causal, None))
        if not isinstance(n, Tensor):
            return n
        return n.to(torch.promote_types(n.dtype, q.dtype))  # a count is exact in fp32 already

    @property
    def _dtype(self) -> torch.dtype:
        """That of n_i at least: what is learned; q's is known by the call alone."""
        return next((p.dtype for p in self.parameters()), torch.float32)

    def extra_repr(self) -> str:
        """The mathematics, for ``print(model)``."""
        return str(self.spec)


def _hiding(attn_mask: Tensor | None) -> Tensor | None:
    """The same mask, with -inf where its numbers mean that a key is hidden."""
    if attn_mask is None or not attn_mask.is_floating_point():
        return attn_mask
    return attn_mask.masked_fill(attn_mask <= HIDES_FROM, -math.inf)


def _refuse_dropout(dropout_p: float) -> None:
    """Say how the libraries that are served call what they pass here."""
    raise UnsupportedError(
        f"the module drops {dropout_p:g} of its attention weights in training, and pointwise "
        "attention keeps no weights to drop. Set that rate to 0 (timm: attn_drop.p, torch.nn: "
        "MultiheadAttention.dropout, transformers: the config's), or call eval()."
    )
