"""Attention with its projections: self and cross, grouped heads, pointwise or softmax.

Shapes: B batch, L tokens, E embedding, H query heads, Hkv key heads, D head dim.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.errors import InputError, check_choice
from flashpoint.layers.cache import KeyValueCache
from flashpoint.layers.output import GATES, Gate, OutputNorm, activate_gate, make_output_norm
from flashpoint.layers.qk_norm import QkNorm, head_norm_of, is_head_norm, make_norm
from flashpoint.layers.softmax import attend_softmax, check_softmax_mask, softmax_weights
from flashpoint.layers.spec import SOFTMAX, AnySpec, AttentionSpec
from flashpoint.layers.terms import PointwiseTerms, power
from flashpoint.layers.visibility import Visibility, rows_of
from flashpoint.ops.api import attention, attention_qkvpacked
from flashpoint.ops.spec import find_activation
from flashpoint.shapes import Float, Int


class Attention(PointwiseTerms):
    """Multi-head attention with timm's parameter names: qkv, q_norm, k_norm, proj.

    Kernels start xavier uniform, the parts of q, k and v as matrices of their own; biases zero.

    Args:
        dim: E, the width of x.
        num_heads: H; the head dim is E / H.
        spec: the mathematics: an ``AttentionSpec``, its fields, or a word as "relu4/sum".
        num_kv_heads: heads of k and v, a divisor of H. None: H.
        qk_norm: of q and k over the head dim, scale only: "layer", "rms" or "none".
        gate: an extra projection of x, without bias, times the attention's output before proj:
            after "sigmoid", "silu" or as it is ("identity"). "none": no gate. The paper (arXiv
            2309.08586, figure 4) has one and says neither which activation nor whether a bias.
        output_norm: of all heads' output together, before the gate and proj: "layer" or "rms",
            scale only; "gated_rms", which is ReLA's; or "none".
        qkv_bias, proj_bias: whether these projections have biases.
        qkv_init: gain of the kernels of q, k and v at the start, 1 / sqrt(2) in fairseq.
        context_dim: width of the context that gives k and v. None: x gives them.
        attend: what computes pointwise attention; takes the arguments of
            ``flashpoint.attention``. Softmax goes to PyTorch's SDPA. Left as it is, plain
            self-attention goes to ``flashpoint.attention_qkvpacked``, norms and all; on a CPU
            not where the norms' gradient is wanted.

    Example:
        >>> layer = Attention(64, 4, "relu2")
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        spec: AnySpec = AttentionSpec(),  # noqa: B008  frozen
        *,
        num_kv_heads: int | None = None,
        qk_norm: QkNorm = "none",
        gate: Gate = "none",
        output_norm: OutputNorm = "none",
        qkv_bias: bool = True,
        proj_bias: bool = True,
        qkv_init: float = 1.0,
        context_dim: int | None = None,
        attend: Callable[..., Tensor] = attention,
    ) -> None:
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(dim, num_heads, num_kv_heads)
        super().__init__(spec, num_heads)
        self.attend = attend
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = dim // num_heads
        self.is_cross, self.qkv_init = context_dim is not None, qkv_init
        kv_dim = 2 * num_kv_heads * self.head_dim
        if context_dim is None:
            self.qkv = nn.Linear(dim, dim + kv_dim, bias=qkv_bias)
        else:
            self.q = nn.Linear(dim, dim, bias=qkv_bias)
            self.kv = nn.Linear(context_dim, kv_dim, bias=qkv_bias)
        self.q_norm, self.k_norm = (make_norm(qk_norm, self.head_dim) for _ in range(2))
        check_choice("gate", gate, GATES)
        self.gate_kind = gate
        self.gate = None if gate == "none" else nn.Linear(dim, dim, bias=False)
        self.norm = make_output_norm(output_norm, dim)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew: xavier kernels, zero biases, learned numbers at their starts."""
        super().reset_parameters()
        kv = self.num_kv_heads * self.head_dim
        parts = {"qkv": [self.num_heads * self.head_dim, kv, kv], "kv": [kv, kv]}
        for name, module in self.named_children():
            if isinstance(module, nn.Linear):
                gain = self.qkv_init if name in ("qkv", "q", "kv") else 1.0
                for kernel in module.weight.split(parts.get(name, [module.out_features])):
                    nn.init.xavier_uniform_(kernel, gain)
                if "bias" in dict(module.named_parameters()):
                    nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                module.reset_parameters()

    def forward(
        self,
        x: Float[Tensor, "B Lq E"],
        context: Float[Tensor, "B Lk C"] | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B Lq E"]:
        """Attend from x to itself or to the context; options as for ``flashpoint.attention``.

        With softmax a mask is bool; a query that sees nothing gets zeros before proj.

        With a cache, x holds new tokens: they attend to those of earlier calls too, and with
        cross-attention only the first call projects the context.
        """
        if cache is mask is context is None and self._packs(x):
            return self._project_back(x, self._mix_packed(x, causal, key_lengths))
        if cache is None:
            q, k, v = self.project(x, context)
        elif mask is not None:
            raise InputError(
                "a mask and a cache cannot be combined. Pass key_lengths, or neither."
            )
        elif self.is_cross:
            q, k, v = self._project_to_context(x, context, cache)
        else:
            q, k, v = self.project(x)
            k, v, causal, key_lengths = self._recall(cache, k, v, causal, key_lengths)
        return self.finish(x, q, k, v, mask, causal, key_lengths)

    def finish(
        self,
        x: Float[Tensor, "B Lq E"],
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B Lq E"]:
        """The layer's output from what ``project`` gave; x opens the gate, if there is one."""
        return self._project_back(x, self._mix(q, k, v, mask, causal, key_lengths))

    def finish_with_sums(
        self,
        x: Float[Tensor, "B Lq E"],
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        visibility: Visibility,
    ) -> tuple[Float[Tensor, "B Lq E"], Float[Tensor, "B H Lq"], Float[Tensor, "B H Lq"]]:
        """``finish``, and the rows' sums of w = h(scores) and of w log w, by one call.

        Without the spec's normalizer and gain, in fp32 or more.
        """
        found: list[Tensor] = []

        def attend(**options: Any) -> Tensor:
            o, *sums = self.attend(q, k, v, mask=visibility.mask, return_sums="logs", **options)
            found.extend(sums)
            return o

        o = self._attend_pointwise(attend, visibility)
        sums, log_sums = found
        return self._project_back(x, o), sums, log_sums

    def mix(
        self,
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B H Lq D"]:
        """The sum of values by their weights: what stands between ``project`` and ``proj``."""
        o = self._mix(q, k, v, mask, causal, key_lengths)
        return o if self._outer_gain is None else (o * self._outer_gain).to(o.dtype)

    def _mix(
        self,
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        mask: Tensor | None,
        causal: bool,
        key_lengths: Int[Tensor, " B"] | None,
    ) -> Float[Tensor, "B H Lq D"]:
        """``mix`` but for a gain that proj can take."""
        visibility = Visibility.of(q, k, mask, causal, key_lengths)
        if self.spec.activation == SOFTMAX:
            check_softmax_mask(mask)
            return attend_softmax(q, k, v, visibility)
        return self._attend_pointwise(partial(self.attend, q, k, v, mask=mask), visibility)

    def _packs(self, x: Tensor) -> bool:
        """Whether a plain call is one of ``attention_qkvpacked``, the layer's norms included.

        Not where a CPU would have to make the norms again for the gradient.
        """
        norms = (self.q_norm, self.k_norm)
        has_norm = not all(isinstance(norm, nn.Identity) for norm in norms)
        return (
            self.attend is attention
            and self.spec.activation != SOFTMAX
            and not self.is_cross
            and self.num_kv_heads == self.num_heads
            and (x.is_cuda or not (has_norm and torch.is_grad_enabled()))
            and all(is_head_norm(norm, self.head_dim) for norm in norms)
        )

    def _mix_packed(
        self, x: Float[Tensor, "B L E"], causal: bool, key_lengths: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B H L D"]:
        """``_mix`` of ``project``, with heads side by side in memory as the projections want."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))  # [B, L, 3, H, D]
        norms = {"q_norm": head_norm_of(self.q_norm), "k_norm": head_norm_of(self.k_norm)}

        def attend(**options: Any) -> Tensor:
            return attention_qkvpacked(qkv, **norms, **options).transpose(1, 2)

        visibility = Visibility(x.shape[1], x.shape[1], x.device, None, causal, key_lengths)
        return self._attend_pointwise(attend, visibility)

    def _project_back(
        self, x: Float[Tensor, "B Lq E"], o: Float[Tensor, "B H Lq D"]
    ) -> Float[Tensor, "B Lq E"]:
        """The gain, the norm, the gate, and proj."""
        gain = self._outer_gain
        in_proj = gain if isinstance(gain, Tensor) and self._proj_takes_gain else None
        if gain is not None and in_proj is None:
            o = (o * gain).to(o.dtype)
        o = self.norm(o.transpose(1, 2).flatten(2))  # [B, Lq, E]
        if self.gate is not None:
            o = o * activate_gate(self.gate(x), self.gate_kind)
        if in_proj is None:
            return self.proj(o)
        weight = self.proj.weight
        kernel = weight.unflatten(1, (-1, self.head_dim)) * in_proj.flatten(1)  # [E, H, D]
        return F.linear(o, kernel.flatten(1).to(weight.dtype), self.proj.bias)

    @property
    def _proj_takes_gain(self) -> bool:
        """Whether a learned gain goes into proj's matrix: in training, instead of into all tokens.

        Not where a norm lies between, something else took proj's place, or hooks want it called.
        """
        proj = self.proj
        hooks = (proj._forward_hooks, proj._forward_pre_hooks, proj._backward_hooks)
        is_plain = type(proj) is nn.Linear and isinstance(self.norm, nn.Identity)
        return torch.is_grad_enabled() and is_plain and not any(hooks)

    def _recall(
        self, cache: KeyValueCache, k: Tensor, v: Tensor, causal: bool, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, bool, Tensor | None]:
        """New keys and values behind those in the cache: all of them, and who sees them."""
        if cache.is_empty:
            cache.write(k, v, lengths)
            return k, v, causal, lengths
        cache.append(k, v)  # one query, at the end: it sees all that exists
        if k.is_cuda and self.spec.activation != SOFTMAX and self.spec.length != "keys":
            return *cache.whole(), False, cache.lengths  # kernels are made for shapes that stay
        return *cache.held(), False, None if cache.is_even else cache.lengths

    def _project_to_context(
        self, x: Tensor, context: Tensor | None, cache: KeyValueCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As ``project``; keys and values of the context are projected by the first call."""
        if cache.is_empty:
            q, k, v = self.project(x, context)
            cache.write(k, v, can_grow=False)
            return q, k, v
        q = self.q_norm(self.q(x).unflatten(-1, (-1, self.head_dim)))
        return q.transpose(1, 2), *cache.whole()

    def project(
        self, x: Float[Tensor, "B Lq E"], context: Float[Tensor, "B Lk C"] | None = None
    ) -> tuple[
        Float[Tensor, "B H Lq D"], Float[Tensor, "B Hkv Lk D"], Float[Tensor, "B Hkv Lk D"]
    ]:
        """q, k, v as attention takes them: split into heads, q and k normalised."""
        if (context is not None) != self.is_cross:
            raise InputError(
                "this layer was built for cross-attention: pass a context."
                if self.is_cross
                else "this layer was built without context_dim and takes no context."
            )
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if context is None:
            qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [B, L, H + 2 Hkv, D]
            q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)
        else:
            q = self.q(x).unflatten(-1, (-1, self.head_dim))  # [B, Lq, H, D]
            kv = self.kv(context).unflatten(-1, (-1, self.head_dim))  # [B, Lk, 2 Hkv, D]
            k, v = kv.split(kv_heads, dim=2)
        q, k = self.q_norm(q), self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def weights(
        self,
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        rows: slice = slice(None),
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B H rows Lk"]:
        """The weights of some query rows in fp32, normalizer and gain included.

        For statistics and maps; ``forward`` never forms them. q and k come from ``project``.

        Example:
            >>> layer = Attention(64, 4, AttentionSpec(activation="softmax"))
            >>> q, k, v = layer.project(torch.randn(2, 10, 64))
            >>> layer.weights(q, k, slice(0, 3)).sum(-1).allclose(torch.ones(2, 4, 3))
            True
        """
        visibility = Visibility.of(q, k, mask, causal, key_lengths)
        seen = visibility.matrix(rows)
        with torch.autocast(q.device.type, enabled=False):
            keys = k.float().repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
            scores = self.head_dim**-0.5 * (q[:, :, rows].float() @ keys.mT)  # [B, H, rows, Lk]
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

    def _attend_pointwise(
        self, attend: Callable[..., Tensor], visibility: Visibility
    ) -> Float[Tensor, "B H Lq D"]:
        """One call of the operator, then a learned alpha, which is not a number there."""
        spec = self.spec
        n = self._length(visibility) if self._needs_length else 1.0
        division: dict[str, Any] = {"alpha": 1.0 if self.alpha is not None else spec.alpha}
        if spec.by_sum:
            division = {"normalize": spec.normalize, "floor": spec.floor}
        o = attend(
            activation=spec.activation,
            length=spec.length,
            bias=self._bias(n),
            causal=visibility.causal,
            key_lengths=visibility.key_lengths,
            **division,
        )
        if self.alpha is not None:  # a fixed exponent of 1 keeps the output within fp16's range
            return (o * (self._gain() * power(n, 1.0 - self._alpha()))).to(o.dtype)
        return o

    def extra_repr(self) -> str:
        """The mathematics, for ``print(model)``."""
        return f"{self.spec}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"


def _check_heads(dim: int, num_heads: int, num_kv_heads: int) -> None:
    if min(dim, num_heads, num_kv_heads) < 1 or dim % num_heads or num_heads % num_kv_heads:
        raise InputError(
            f"dim={dim}, num_heads={num_heads}, num_kv_heads={num_kv_heads}: heads must divide "
            "the dim, and key heads must divide the heads."
        )
