"""Attention with its projections: self and cross, grouped heads, pointwise or softmax.

Shapes: B batch, L tokens, E embedding, H query heads, Hkv key heads, D head dim.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.errors import InputError, check_choice
from flashpoint.layers.cache import KeyValueCache
from flashpoint.layers.mixing import HeadMixing, refuse_weight_dropout
from flashpoint.layers.output import GATES, Gate, OutputNorm, activate_gate, make_output_norm
from flashpoint.layers.qk_norm import (
    NormLayer,
    QkNorm,
    head_norm_of,
    is_head_norm,
    make_norm,
)
from flashpoint.layers.spec import SOFTMAX, AnySpec, AttentionSpec
from flashpoint.layers.visibility import Visibility, is_sharded, merge_masks
from flashpoint.ops.api import attention, attention_qkvpacked
from flashpoint.ops.check import check_dense, check_tensor
from flashpoint.shapes import Float, Int


class Attention(HeadMixing):
    """Multi-head attention with timm's parameter names: qkv, q_norm, k_norm, proj.

    It fits where timm's ``Attention`` does: ``block.attn = Attention(dim, num_heads, "relu")``
    reads the old layer's state dict and is called as it was.

    Kernels start xavier uniform, the parts of q, k and v as matrices of their own; biases zero.

    Args:
        dim: E, the width of x.
        num_heads: H; the head dim is E / H.
        spec: the mathematics: an ``AttentionSpec``, its fields, or a word as "relu4/sum".
        num_kv_heads: heads of k and v, a divisor of H. None: H.
        qk_norm: of q and k over the head dim, scale only: "layer", "rms" or "none". True: what
            ``norm_layer`` makes, or "layer".
        gate: an extra projection of x, without bias, times the attention's output before proj:
            after "sigmoid", "silu" or as it is ("identity"). "none": no gate. The paper (arXiv
            2309.08586, figure 4) has one and says neither which activation nor whether a bias.
        output_norm: of all heads' output together, before the gate and proj: "layer" or "rms",
            scale only; "gated_rms", which is ReLA's; or "none". True as for qk_norm.
        qkv_bias, proj_bias: whether these projections have biases.
        qkv_init: gain of the kernels of q, k and v at the start, 1 / sqrt(2) in fairseq.
        context_dim: width of the context that gives k and v. None: x gives them.
        attend: what computes pointwise attention; takes the arguments of
            ``flashpoint.attention``. Softmax goes to PyTorch's SDPA. Left as it is, plain
            self-attention goes to ``flashpoint.attention_qkvpacked``, norms and all; on a CPU
            not where the norms' gradient is wanted.
        norm_layer: makes a norm of a width, as timm's layers get it.
        scale_norm: timm's word for ``output_norm=True``.
        attn_drop: must be 0: weights are never kept, so none can be dropped.
        proj_drop: share of the output that training drops.
        device, dtype: of the parameters.

    Example:
        >>> layer = Attention(64, 4, "relu2")
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        spec: AnySpec = AttentionSpec(),  # noqa: B008  frozen
        *,
        num_kv_heads: int | None = None,
        qk_norm: QkNorm | bool = "none",
        gate: Gate = "none",
        output_norm: OutputNorm | bool = "none",
        qkv_bias: bool = True,
        proj_bias: bool = True,
        qkv_init: float = 1.0,
        context_dim: int | None = None,
        attend: Callable[..., Tensor] = attention,
        norm_layer: NormLayer | None = None,
        scale_norm: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, num_heads, spec, num_kv_heads, attend)
        refuse_weight_dropout("attn_drop", attn_drop)
        self.dim, self.context_dim = dim, context_dim
        self.is_cross, self.qkv_init = context_dim is not None, qkv_init
        self._add_projections(dim, context_dim, qkv_bias)
        self.q_norm = make_norm(qk_norm, self.head_dim, norm_layer)
        self.k_norm = make_norm(qk_norm, self.head_dim, norm_layer)
        check_choice("gate", gate, GATES)
        self.gate_kind = gate
        self.gate = None if gate == "none" else nn.Linear(dim, dim, bias=False)
        self.norm = make_output_norm(scale_norm or output_norm, dim, norm_layer)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    def _add_projections(self, dim: int, context_dim: int | None, bias: bool) -> None:
        """Of x to q, k and v; or of x to q, and of a context to k and v."""
        kv_dim = 2 * self.num_kv_heads * self.head_dim
        if context_dim is None:
            self.qkv = nn.Linear(dim, dim + kv_dim, bias=bias)
        else:
            self.q = nn.Linear(dim, dim, bias=bias)
            self.kv = nn.Linear(context_dim, kv_dim, bias=bias)

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
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "B Lq E"]:
        """Attend from x to itself or to the context; options as for ``flashpoint.attention``.

        With softmax a mask is bool; a query that sees nothing gets zeros before proj.

        With a cache, x holds new tokens: they attend to those of earlier calls too, and with
        cross-attention only the first call projects the context. In self-attention key_lengths
        then says how many tokens of x each sample has; what comes out of its others is no result.

        attn_mask is a mask as PyTorch's SDPA and timm have it: bool, or added to the scores, and
        -inf hides a key. is_causal is timm's word for causal.
        """
        _check_tokens("x", x, self.dim)
        if context is not None and self.context_dim is not None:
            _check_tokens("context", context, self.context_dim)
        causal = causal or is_causal
        added, mask = merge_masks(mask, attn_mask)
        if cache is mask is context is None and self._packs(x):
            return self._project_back(x, self._mix_packed(x, causal, key_lengths))
        if cache is None:
            q, k, v = self.project(x, context)
        elif mask is not None:
            raise InputError(
                "a mask and a cache cannot be combined. Pass key_lengths, or neither."
            )
        elif is_sharded(self.attend):
            raise InputError(
                "a cache holds whole sequences, and this layer attends over shards. Leave it out."
            )
        elif self.is_cross:
            q, k, v = self._project_to_context(x, context, cache)
        else:
            q, k, v = self.project(x)
            k, v, mask, causal, key_lengths = self._recall(cache, k, v, causal, key_lengths)
        return self.finish(x, q, k, v, mask, causal, key_lengths, added)

    def finish(
        self,
        x: Float[Tensor, "B Lq E"],
        q: Float[Tensor, "B H Lq D"],
        k: Float[Tensor, "B Hkv Lk D"],
        v: Float[Tensor, "B Hkv Lk D"],
        mask: Tensor | None = None,
        causal: bool = False,
        key_lengths: Int[Tensor, " B"] | None = None,
        added: Tensor | None = None,
    ) -> Float[Tensor, "B Lq E"]:
        """The layer's output from what ``project`` gave; x opens the gate, if there is one."""
        return self._project_back(x, self._mix(q, k, v, mask, causal, key_lengths, added))

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
        """The gain, the norm, the gate, proj and what follows it."""
        gain = self._outer_gain
        in_proj = gain if isinstance(gain, Tensor) and self._proj_takes_gain else None
        if gain is not None and in_proj is None:
            o = (o * gain).to(o.dtype)
        o = self.norm(o.transpose(1, 2).flatten(2))  # [B, Lq, E]
        if self.gate is not None:
            o = o * activate_gate(self.gate(x), self.gate_kind)
        if in_proj is None:
            return self.proj_drop(self.proj(o))
        weight = self.proj.weight
        kernel = weight.unflatten(1, (-1, self.head_dim)) * in_proj.flatten(1)  # [E, H, D]
        return self.proj_drop(F.linear(o, kernel.flatten(1).to(weight.dtype), self.proj.bias))

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
    ) -> tuple[Tensor, Tensor, Tensor | None, bool, Tensor | None]:
        """New keys and values behind those in the cache: all of them, and who sees them.

        That is said by a mask, causality, and how many keys of every sample exist.
        """
        if cache.is_empty:
            cache.write(k, v, lengths)
            return k, v, None, causal, lengths
        places = cache.next_places(k.shape[2])
        cache.append(k, v, lengths)
        if k.shape[2] == 1:  # one query, at the end: it sees all that exists
            if k.is_cuda and self.spec.activation != SOFTMAX and self.spec.length != "keys":
                return *cache.whole(), None, False, cache.lengths  # kernels want shapes that stay
            causal = False
        if cache.is_even:
            return *cache.held(), None, causal, None
        k, v = cache.held()
        if not causal:
            return k, v, None, False, cache.lengths
        key = torch.arange(k.shape[2], device=k.device)  # every sample's queries stand elsewhere
        return k, v, key <= places.view(len(k), 1, -1, 1), False, cache.lengths

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
        """q, k, v as attention takes them: split into heads, q and k normalized."""
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


def _check_tokens(name: str, x: Tensor, width: int) -> None:
    """[B, L, width]."""
    check_tensor(name, x)
    check_dense(name, x)
    if x.dim() != 3 or x.shape[2] != width:
        raise InputError(
            f"{name} has shape {list(x.shape)}; this layer takes [B, L, {width}]: samples, "
            "tokens, width."
        )
