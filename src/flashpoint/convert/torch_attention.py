"""torch.nn's MultiheadAttention, alone or in PyTorch's Transformer layers.

In eval mode PyTorch's encoder and encoder layer compute everything by fused functions of their
own, which know softmax alone. They ask the module and the encoder whether they may, and a served
one says no. So a replaced encoder gives numbers at padded tokens too, where its fused functions
put zeros.

Shapes: B batch, H heads, Lq queries, Lk keys, E width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.convert.sites import (
    Found,
    Served,
    ServedSite,
    Site,
    original_class,
    serve,
    unserve,
)
from flashpoint.convert.substitute import Substitute
from flashpoint.errors import InputError, UnsupportedError

_COLUMNS = 64  # of the weights, made by one call


class TorchAttention(Served, nn.MultiheadAttention):
    """A MultiheadAttention that computes by its substitute."""

    substitute: Substitute

    @property
    def _qkv_same_embed_dim(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """False: PyTorch's encoder layers then call this module instead of a fused function."""
        return False

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
        """As ``nn.MultiheadAttention``: its arguments, layouts and meanings of masks.

        The weights that ``need_weights`` asks for are what values are multiplied by, normalizer
        and gain included. They cost the memory of all scores, and dropout leaves them whole.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            raise UnsupportedError(
                "replaced attention takes no nested tensors. Pass padded ones and a "
                "key_padding_mask."
            )
        is_batched = _is_batched(query, key, value)
        q, k, v = self._project(query, key, value, is_batched)
        if is_causal and attn_mask is None:
            raise InputError("is_causal=True is a hint about attn_mask. Pass attn_mask too.")
        is_causal = is_causal and key_padding_mask is None  # as PyTorch: the mask says it all
        mask = None if is_causal else _join_masks(attn_mask, key_padding_mask, q, k)
        dropout = self.dropout if self.training else 0.0
        o = self.substitute(q, k, v, mask, dropout, is_causal)
        o = self.out_proj(o.transpose(1, 2).flatten(2))  # [B, Lq, E]
        weights = self._weights(q, k, mask, is_causal) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            return o[0], None if weights is None else weights[0]
        return o if self.batch_first else o.transpose(0, 1), weights

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, is_batched: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as [B, H, L, D]."""
        packed: Tensor | None = getattr(self, "in_proj_weight", None)  # None: kdim or vdim differ
        bias: Tensor | None = getattr(self, "in_proj_bias", None)
        is_self = query is key and key is value
        given = (query,) if is_self else (query, key, value)
        if not is_batched:
            given = [x[None] for x in given]
        elif not self.batch_first:
            given = [x.transpose(0, 1) for x in given]
        if is_self and packed is not None:
            parts = F.linear(given[0], packed, bias).chunk(3, -1)
        else:
            given = [*given, *given, *given] if is_self else given
            kernels = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            kernels = kernels if packed is None else packed.chunk(3)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            parts = [F.linear(*x) for x in zip(given, kernels, biases, strict=True)]
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in parts)
        return q, k, v

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        """[B, H, Lq, Lk]: what comes out where the values are the rows of an identity matrix."""
        rows = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
        parts = [
            self.substitute(q, k, x.expand(*k.shape[:2], -1, -1), mask, 0.0, is_causal)
            for x in rows.split(_COLUMNS, dim=1)
        ]
        return torch.cat(parts, dim=-1)


class TorchEncoder(Served):
    """An encoder with a replaced layer in it."""

    @property
    def use_nested_tensor(self) -> bool:
        """False: padding stays in the tensors, as replaced layers take them."""
        return False


class TorchSite(ServedSite):
    """One MultiheadAttention.

    Attributes:
        encoders: those that hold it, which would hand it nested tensors.
    """

    first = TorchAttention

    def __init__(self, name: str, module: nn.Module, encoders: tuple[nn.Module, ...]) -> None:
        super().__init__(name, module)
        self.encoders = encoders

    def install(self, substitute: Substitute) -> None:
        """As any, and let the encoders know."""
        super().install(substitute)
        for encoder in self.encoders:
            serve(encoder, TorchEncoder)

    def restore(self) -> None:
        """As any; an encoder is itself again once nothing in it is replaced."""
        super().restore()
        for encoder in self.encoders:
            if not any(isinstance(x, TorchAttention) for x in encoder.modules()):
                unserve(encoder)

    @property
    def dropout(self) -> float:
        """PyTorch's one rate."""
        return float(self.module.dropout)  # pyright: ignore[reportArgumentType]

    @property
    def dropout_advice(self) -> str:
        """PyTorch's own word for it."""
        return "set dropout=0.0 of this module (as layer.self_attn.dropout = 0.0)"


def find(model: nn.Module) -> Found:
    """Every MultiheadAttention in a model."""
    sites: list[Site] = []
    left: dict[str, str] = {}
    encoders = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.TransformerEncoder)
    }
    for name, module in model.named_modules():
        if original_class(module) is not nn.MultiheadAttention:
            continue
        reason = _why_not(module)
        if reason is not None:
            left[name] = reason
            continue
        holding = [x for above, x in encoders.items() if not above or name.startswith(above + ".")]
        sites.append(TorchSite(name, module, tuple(holding)))
    return Found(sites=tuple(sites), left=left)


def _why_not(module: nn.Module) -> str | None:
    """Why a MultiheadAttention cannot be served; None: it can."""
    if "forward" in vars(module):
        return "somebody gave this instance a forward of its own"
    if getattr(module, "bias_k", None) is not None:
        return "add_bias_kv=True adds a learned key that masks and lengths do not know"
    if getattr(module, "add_zero_attn", False):
        return "add_zero_attn=True adds a key of zeros, which only softmax feels"
    return None


def _join_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, k: Tensor
) -> Tensor | None:
    """Both as one mask of SDPA's, where True may look, or as one that is added."""
    masks: list[Tensor] = []
    (batch, heads, num_queries), num_keys = q.shape[:3], k.shape[2]
    if attn_mask is not None:
        shapes = ([num_queries, num_keys], [batch * heads, num_queries, num_keys])
        _check_mask("attn_mask", attn_mask, shapes)
        dims = (batch, heads, num_queries, num_keys)
        masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.view(dims))
    if key_padding_mask is not None:
        shapes = ([num_keys],) if batch == 1 and key_padding_mask.dim() == 1 else ()
        _check_mask("key_padding_mask", key_padding_mask, (*shapes, [batch, num_keys]))
        masks.append(key_padding_mask.view(-1, 1, 1, num_keys))
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):  # True hides
        return ~masks[0] if len(masks) == 1 else ~(masks[0] | masks[1])
    added = [_added(mask, q.dtype) for mask in masks]
    return added[0] if len(added) == 1 else added[0] + added[1]


def _check_mask(name: str, mask: Tensor, shapes: Sequence[list[int]]) -> None:
    """Refuse what torch.nn refuses: a turned or an integer mask would be taken for another."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        dtype = str(mask.dtype).removeprefix("torch.")
        raise InputError(f"{name} is {dtype}, expected bool (True hides) or floating (added).")
    if list(mask.shape) not in shapes:
        expected = " or ".join(str(shape) for shape in shapes)
        raise InputError(f"{name} has shape {list(mask.shape)}, expected {expected}.")


def _is_batched(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether tensors are [B, L, E] or, without batch_first, [L, B, E]; else all are [L, E]."""
    dims = {x.dim() for x in (query, key, value)}
    if dims not in ({2}, {3}):
        shapes = ", ".join(str(list(x.shape)) for x in (query, key, value))
        raise InputError(f"query, key and value must all have 2 or all 3 dims. Got {shapes}.")
    return dims == {3}


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
