"""Attention with the names, arguments and masks of ``torch.nn.MultiheadAttention``.

Shapes: N batch, L queries, S keys, E embedding, H heads, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.layers.mixing import HeadMixing, refuse_weight_dropout
from flashpoint.layers.spec import AnySpec, AttentionSpec
from flashpoint.layers.visibility import read_attn_mask
from flashpoint.ops.check import check_tensor
from flashpoint.shapes import Float

Masks = tuple[Tensor | None, Tensor | None]
"""Who may look (bool), and what the scores get (float)."""


class MultiheadAttention(HeadMixing):
    """Stands where ``torch.nn.MultiheadAttention`` stood, with the same parameters by name.

    Its state dict can be loaded, and ``nn.TransformerEncoderLayer`` and its relatives take it for
    ``self_attn``. They have a fast path for inference that computes softmax without calling the
    layer; this layer keeps them off it.

    Args:
        embed_dim, num_heads: E and H; the head dim is E / H.
        spec: the mathematics: an ``AttentionSpec``, its fields, or a word as "relu4/sum".
        dropout: must be 0: weights are never kept, so none can be dropped.
        bias: whether the projections have biases.
        add_bias_kv, add_zero_attn: must be False.
        kdim, vdim: widths of keys and values. None: E.
        batch_first: whether tensors are [N, L, E], not [L, N, E].
        device, dtype: of the parameters.

    Example:
        >>> old = nn.MultiheadAttention(64, 4, batch_first=True)
        >>> new = MultiheadAttention(64, 4, "relu", batch_first=True)
        >>> new.load_state_dict(old.state_dict())
        <All keys matched successfully>
        >>> x = torch.randn(2, 10, 64)
        >>> new(x, x, x, need_weights=False)[0].shape
        torch.Size([2, 10, 64])
    """

    _qkv_same_embed_dim = False  # what PyTorch's fast path asks first: it would compute softmax
    bias_k = bias_v = None
    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter
    k_proj_weight: nn.Parameter
    v_proj_weight: nn.Parameter
    in_proj_bias: nn.Parameter | None
    add_zero_attn = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        spec: AnySpec = AttentionSpec(),  # noqa: B008  frozen
        *,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, spec)
        refuse_weight_dropout("dropout", dropout)
        if add_bias_kv or add_zero_attn:
            raise UnsupportedError(
                f"add_bias_kv={add_bias_kv}, add_zero_attn={add_zero_attn}: keys that no token "
                "has would count in n. Leave both out."
            )
        self.embed_dim, self.dropout, self.batch_first = embed_dim, dropout, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        wide = {"in_proj_weight": (3 * embed_dim, embed_dim)}
        apart = {
            "q_proj_weight": (embed_dim, embed_dim),
            "k_proj_weight": (embed_dim, self.kdim),
            "v_proj_weight": (embed_dim, self.vdim),
        }
        shapes = wide if self.kdim == self.vdim == embed_dim else apart
        shapes = shapes | ({"in_proj_bias": (3 * embed_dim,)} if bias else {})
        for name in (*wide, *apart, "in_proj_bias"):
            kernel = nn.Parameter(torch.empty(shapes[name])) if name in shapes else None
            self.register_parameter(name, kernel)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew as PyTorch's does: xavier kernels, zero biases."""
        super().reset_parameters()
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                nn.init.xavier_uniform_(getattr(self, name))
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights [N, L, S] or, not averaged, [N, H, L, S] if asked for.

        Arguments mean what they mean in PyTorch.

        Args:
            query, key, value: [L, N, E] and [S, N, E], with batch_first [N, L, E]; or without N.
            key_padding_mask: [N, S]. Bool: True hides the key. Float: added to the scores.
            need_weights: whether to form the weights, which takes memory for all of them. They
                need not sum to one.
            attn_mask: [L, S] or [N * H, L, S], bool or float as key_padding_mask.
            average_attn_weights: over heads.
            is_causal: a promise that attn_mask, which must be given, is causal.
        """
        if query.is_nested:
            return self._forward_nested(query, key, value), None
        is_batched = query.dim() == 3
        q, k, v = (self._batch_first(x, is_batched) for x in (query, key, value))
        if is_causal and attn_mask is None:
            raise InputError("is_causal=True is a hint about attn_mask. Pass attn_mask too.")
        causal = is_causal and q.shape[1] == k.shape[1]
        _check_mask_shapes(attn_mask, key_padding_mask, q, k, self.num_heads, is_batched)
        masks = self._read_masks(None if causal else attn_mask, key_padding_mask, q.shape[0])
        q, k, v = self._project(q, k, v, is_self=query is key is value)
        o = self._finish(q, k, v, masks, causal)
        o = o if is_batched and self.batch_first else o.transpose(0, 1) if is_batched else o[0]
        if not need_weights:
            return o, None
        seen, added = masks
        if seen is not None and added is not None:
            seen, added = None, added.masked_fill(~seen, -torch.inf)
        weights = self.weights(q, k, mask=seen, attn_mask=added, causal=causal).to(o.dtype)
        weights = weights.mean(1) if average_attn_weights else weights
        return o, weights if is_batched else weights[0]

    def _batch_first(self, x: Tensor, is_batched: bool) -> Float[Tensor, "N L E"]:
        if x.dim() != (3 if is_batched else 2):
            raise InputError(
                f"query, key and value must all have a batch, or none: one has shape "
                f"{list(x.shape)}, the query {'3' if is_batched else '2'} dimensions."
            )
        return x[None] if not is_batched else x if self.batch_first else x.transpose(0, 1)

    def _project(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_self: bool
    ) -> tuple[Float[Tensor, "N H L D"], Float[Tensor, "N H S D"], Float[Tensor, "N H S D"]]:
        """q, k and v as attention takes them."""
        if is_self and self.in_proj_weight is not None:
            parts = F.linear(q, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            packed, bias = self.in_proj_weight, self.in_proj_bias
            apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            kernels = apart if packed is None else packed.chunk(3)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            given = zip((q, k, v), kernels, biases, strict=True)
            parts = tuple(F.linear(x, kernel, b) for x, kernel, b in given)
        heads = (self.num_heads, self.head_dim)
        q, k, v = (part.unflatten(-1, heads).transpose(1, 2) for part in parts)
        return q, k, v

    def _finish(
        self, q: Tensor, k: Tensor, v: Tensor, masks: Masks, causal: bool
    ) -> Float[Tensor, "N L E"]:
        o = self.mix(q, k, v, masks[0], causal, added=masks[1])
        return self.out_proj(o.transpose(1, 2).flatten(2))

    def _read_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, num: int
    ) -> Masks:
        """Both masks as one, broadcast to [N, H, L, S]."""
        seen: Tensor | None = None
        added: Tensor | None = None
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (num, self.num_heads))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.view(num, 1, 1, -1)
        for mask in (attn_mask, key_padding_mask):
            if mask is None:
                continue
            more, may_look = read_attn_mask(~mask if mask.dtype == torch.bool else mask)
            seen = may_look if seen is None else seen & may_look
            if more is not None:
                added = more if added is None else added + more
        return seen, added

    def _forward_nested(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Self-attention of sequences that ``nn.TransformerEncoder`` packed to skip padding."""
        if query is not key or key is not value:
            raise UnsupportedError("nested tensors serve self-attention only. Pad key and value.")
        x = query.to_padded_tensor(0.0)  # [N, L, E]
        lengths = query._nested_tensor_size()[:, 0].to(x.device)
        exists = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        q, k, v = self._project(x, x, x, is_self=True)
        o = self._finish(q, k, v, (exists[:, None, None], None), causal=False)
        return torch.ops.aten._nested_tensor_from_mask(o, exists, False)

    @property
    def _dtype(self) -> torch.dtype:
        return self.out_proj.weight.dtype


def _check_mask_shapes(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    q: Float[Tensor, "N L E"],
    k: Float[Tensor, "N S E"],
    num_heads: int,
    is_batched: bool,
) -> None:
    """Refuse shapes that PyTorch refuses; some would broadcast, and hide the wrong keys."""
    num, rows, keys = q.shape[0], q.shape[1], k.shape[1]
    samples = [num] if is_batched else []
    allowed = {
        "attn_mask": ([rows, keys], [num * num_heads, rows, keys]),
        "key_padding_mask": ([*samples, keys],),
    }
    given = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
    for name, mask in given.items():
        if mask is None:
            continue
        check_tensor(name, mask)
        if list(mask.shape) not in allowed[name]:
            expected = " or ".join(str(shape) for shape in allowed[name])
            raise InputError(f"{name} has shape {list(mask.shape)}, expected {expected}.")
