"""What stands between an attention layer's projections: from q, k and v to a sum of values.

Shapes: B batch, H query heads, Hkv key heads, Lq queries, Lk keys, D head dim.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.layers.softmax import (
    attend_softmax,
    check_softmax_mask,
    refuse_shards,
    softmax_weights,
)
from flashpoint.layers.spec import SOFTMAX, AnySpec
from flashpoint.layers.terms import PointwiseTerms, power
from flashpoint.layers.visibility import (
    Visibility,
    is_sharded,
    merge_masks,
    refuse_shard_alone,
    rows_of,
    visibility_of,
)
from flashpoint.ops.activation import find_activation
from flashpoint.ops.api import attention
from flashpoint.shapes import Float, Int


class HeadMixing(PointwiseTerms):
    """The part of an attention layer that knows heads, but not where q, k and v come from.

    Args:
        dim: E, all heads together.
        num_heads: H; the head dim is E / H.
        spec: the mathematics, as for ``Attention``.
        num_kv_heads: heads of k and v, a divisor of H. None: H.
        attend: what computes pointwise attention. Softmax goes to PyTorch's SDPA.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        spec: AnySpec,
        num_kv_heads: int | None = None,
        attend: Callable[..., Tensor] = attention,
    ) -> None:
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(dim, num_heads, num_kv_heads)
        super().__init__(spec, num_heads)
        self.attend = attend
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = dim // num_heads

    def mix(
        self,
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
        added: Tensor | None = None,
    ) -> Float[Tensor, "B H Lq D"]:
        """The sum of values by their weights: what stands between ``project`` and ``proj``.

        ``added`` is a float tensor that the scores get, finite, broadcast to [B, H, Lq, Lk].
        """
        o = self._mix(q, k, v, mask, causal, key_lengths, added)
        return o if self._outer_gain is None else (o * self._outer_gain).to(o.dtype)

    def _mix(
        self,
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        mask: Tensor | None,
        causal: bool,
        key_lengths: Int[Tensor, " B"] | None,
        added: Tensor | None = None,
    ) -> Float[Tensor, "B H Lq D"]:
        """``mix`` but for a gain that proj can take."""
        asked = self.attend if self._needs_length else None
        visibility = visibility_of(asked, q, k, mask, causal, key_lengths)
        if self.spec.activation == SOFTMAX:
            refuse_shards(self.attend)
            refuse_shard_alone(self.attend)
            check_softmax_mask(mask)
            return attend_softmax(q, k, v, visibility, added)
        attend = partial(self.attend, q, k, v, mask=mask)
        return self._attend_pointwise(attend, visibility, added)

    def _attend_pointwise(
        self, attend: Callable[..., Tensor], visibility: Visibility, added: Tensor | None = None
    ) -> Float[Tensor, "B H Lq D"]:
        """One call of the operator, then a learned alpha, which is not a number there."""
        refuse_shard_alone(self.attend)
        spec = self.spec
        n = self._length(visibility) if self._needs_length else 1.0
        division: dict[str, Any] = {"alpha": 1.0 if self.alpha is not None else spec.alpha}
        if spec.by_sum:
            division = {"normalize": spec.normalize, "floor": spec.floor}
        # without one of the spec, an ``attend`` may have a scale of its own
        scale = {} if spec.scale is None else {"scale": spec.scale}
        o = attend(
            activation=spec.activation,
            length=spec.length,
            bias=_sum_of(self._bias(n), added),
            causal=visibility.causal,
            key_lengths=visibility.key_lengths,
            **division,
            **scale,
        )
        if self.alpha is not None:  # a fixed exponent of 1 keeps the output within fp16's range
            return (o * (self._gain() * power(n, 1.0 - self._alpha()))).to(o.dtype)
        return o

    def weights(
        self,
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        rows: slice = slice(None),
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "B H rows Lk"]:
        """The weights of some query rows in fp32, normalizer and gain included.

        For statistics and maps; ``mix`` never forms them. Options as for ``Attention.forward``.

        Example:
            >>> mixing = HeadMixing(64, 4, "softmax")
            >>> q, k = torch.randn(2, 2, 4, 10, 16)
            >>> mixing.weights(q, k, slice(0, 3)).sum(-1).allclose(torch.ones(2, 4, 3))
            True
        """
        if is_sharded(self.attend):
            raise UnsupportedError(
                "weights are not served over shards of a sequence. Ask a layer on one rank."
            )
        added, mask = merge_masks(mask, attn_mask)
        visibility = Visibility.of(q, k, mask, causal or is_causal, key_lengths)
        seen = visibility.matrix(rows)
        with torch.autocast(q.device.type, enabled=False):
            keys = k.float().repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
            scale = self.head_dim**-0.5 if self.spec.scale is None else self.spec.scale
            scores = scale * (q[:, :, rows].float() @ keys.mT)  # [B, H, rows, Lk]
            scores = scores if added is None else scores + rows_of(added, rows)
            if self.spec.activation == SOFTMAX:
                check_softmax_mask(mask)
                return softmax_weights(scores, seen)
            n = self._length(visibility, rows)
            bias = self._bias(n)
            scores = scores if bias is None else scores + bias
            scores = scores if seen is None else scores.where(seen, 0)
            weights = find_activation(self.spec.activation).weights_of(scores)
            if mask is not None and mask.dtype != torch.bool:
                weights = weights * rows_of(mask, rows)
            weights = weights if seen is None else weights.where(seen, 0)
            return (weights * self._row_factor(weights, n)).float()

    def _row_factor(self, weights: Tensor, n: Any) -> Any:
        """What each row of weights is multiplied by: normalizer and gain; 0 for a row of zeros."""
        if not self.spec.by_sum:
            return self._gain() * power(n, -self._alpha())
        divisor = weights.sum(-1, keepdim=True) + self.spec.floor * n
        nothing = divisor == 0  # a row of zeros without a floor
        return self._gain() * divisor.masked_fill(nothing, torch.inf).reciprocal()

    def extra_repr(self) -> str:
        """The mathematics, for ``print(model)``."""
        return f"{self.spec}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"


def _sum_of(bias: float | Tensor | None, added: Tensor | None) -> float | Tensor | None:
    """What the scores get in all: the spec's bias, and the caller's; in fp32 or more."""
    if bias is None or added is None:
        return bias if added is None else added
    return added.to(torch.promote_types(added.dtype, torch.float32)) + bias


def _check_heads(dim: int, num_heads: int, num_kv_heads: int) -> None:
    if min(dim, num_heads, num_kv_heads) < 1 or dim % num_heads or num_heads % num_kv_heads:
        raise InputError(
            f"dim={dim}, num_heads={num_heads}, num_kv_heads={num_kv_heads}: heads must divide "
            "the dim, and key heads must divide the heads."
        )


def refuse_weight_dropout(name: str, share: float) -> None:
    """Say why weights cannot be dropped, where somebody asks for it."""
    if share != 0.0:
        raise UnsupportedError(
            f"{name}={share:g} drops attention weights, and no implementation here keeps weights "
            "to drop. Pass 0, and drop from the output."
        )
