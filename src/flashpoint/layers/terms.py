"""From a spec to what a call multiplies and adds: numbers, or parameters of the layer.

Shapes: B batch, H query heads, Lq queries.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from flashpoint.layers.spec import LOG_LENGTH, AnySpec, AttentionSpec
from flashpoint.layers.visibility import Visibility


class PointwiseTerms(nn.Module):
    """The part of an attention layer that holds alpha, gain and bias, and makes n_i.

    Args:
        spec: the mathematics, or its short word; it says which of the three are learned.
        num_heads: H, the entries of those that are learned per head.
    """

    alpha: nn.Parameter | None
    gain: nn.Parameter | None
    bias: nn.Parameter | None
    proj: nn.Linear  # the layer's own

    def __init__(self, spec: AnySpec, num_heads: int) -> None:
        super().__init__()
        self.spec = spec = AttentionSpec.parse(spec)
        for name in ("alpha", "gain", "bias"):
            size = num_heads if getattr(spec, name) == "learned_per_head" else 1
            learned = nn.Parameter(torch.empty(size)) if spec.learns(name) else None
            self.register_parameter(name, learned)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Learned numbers at their starts."""
        for name in ("alpha", "gain", "bias"):
            if self.spec.learns(name):
                nn.init.constant_(getattr(self, name), getattr(self.spec, f"{name}_start"))

    def factor_terms(self) -> tuple[Any, Any]:
        """gain and alpha: numbers, or copies [#H, 1, 1] that outlive a sharded layer's call."""
        terms = (self._gain(), self._alpha())
        gain, alpha = (term.clone() if isinstance(term, Tensor) else term for term in terms)
        return gain, alpha

    def factor(self, visibility: Visibility, gain: Any, alpha: Any) -> Any:
        """gain * n_i ** -alpha: a number, or a tensor that broadcasts to [..., B, H, Lq, 1]."""
        return gain * power(self._length(visibility), -alpha)

    @property
    def _outer_gain(self) -> Any:
        """The gain where it is still to be multiplied by; None where there is none."""
        is_done = self.alpha is not None or self.spec.gain == 1.0
        return None if is_done else self._gain()

    @property
    def _needs_length(self) -> bool:
        return self.alpha is not None or self.spec.bias == LOG_LENGTH

    def _length(self, visibility: Visibility, rows: slice | None = None) -> Any:
        """n_i: a number, or a tensor [#B, #H, rows, 1] where it differs; at least 1."""
        length = self.spec.length
        if length not in ("keys", "visible"):
            return length
        counts: Any = visibility.num_keys if length == "keys" else visibility.counts(rows)
        if isinstance(counts, torch.SymInt) and self.spec.bias == LOG_LENGTH:
            # a logarithm of the number itself would fix an exported program's length
            counts = torch.full((1, 1, 1, 1), cast(Any, counts), device=visibility.device)
        if not isinstance(counts, Tensor):
            return max(counts, 1)
        return counts.clamp(min=1).to(torch.promote_types(self._dtype, torch.float32))

    @property
    def _dtype(self) -> torch.dtype:
        """That of n_i, where it is more than fp32."""
        return self.proj.weight.dtype

    def _bias(self, n: Any) -> float | Tensor | None:
        """What is added to the scores."""
        if self.bias is not None:
            return self.bias.view(1, -1, 1, 1)
        if self.spec.bias == LOG_LENGTH:
            return -n.log() if isinstance(n, Tensor) else -math.log(n)
        return None if self.spec.bias == 0.0 else float(self.spec.bias)

    def _alpha(self) -> Any:
        return self.spec.alpha if self.alpha is None else self.alpha.view(-1, 1, 1)

    def _gain(self) -> Any:
        return self.spec.gain if self.gain is None else self.gain.view(-1, 1, 1)


def power(n: Any, exponent: Any) -> Any:
    """n ** exponent; either may be a number or a tensor."""
    if isinstance(exponent, Tensor) and not isinstance(n, Tensor):
        n = exponent.new_full((1,), n)  # torch.compile takes a length as a value of a tensor only
    return n**exponent
