"""Who sees whom in one call, and how many keys that are."""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.ops.check import (
    check_finite,
    check_index,
    check_tensor,
    is_readable,
    read_key_lengths,
)
from flashpoint.ops.sdpa import current_attend
from flashpoint.shapes import Bool, Float, Int


class Visibility(NamedTuple):
    """Which keys the queries may see; query i stands at position p = i + Lk - Lq.

    Attributes:
        num_queries, num_keys: Lq, Lk.
        device: of the tensors.
        mask: bool, broadcasts to [B, H, Lq, Lk]; True may look. None: it hides nothing.
        causal: only keys j <= p.
        key_lengths: how many keys of each sample exist.
    """

    num_queries: int
    num_keys: int
    device: torch.device
    mask: Tensor | None
    causal: bool
    key_lengths: Tensor | None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        causal: bool,
        key_lengths: Tensor | None,
    ) -> "Visibility":
        """That of a call; a float mask multiplies weights and hides nothing."""
        hides = mask is not None and mask.dtype == torch.bool
        sizes = (q.shape[2], k.shape[2])
        return cls(*sizes, q.device, mask if hides else None, causal, key_lengths)

    def matrix(self, rows: slice | None = None) -> Bool[Tensor, "#B #H #Lq Lk"] | None:
        """True where a query of these rows (all) sees a key; None where all see everything."""
        rows = rows or slice(None)
        key = torch.arange(self.num_keys, device=self.device)
        parts: list[Tensor] = []
        if self.causal:
            position = torch.arange(self.num_queries, device=self.device)[rows, None]
            parts.append((key <= position + self.num_keys - self.num_queries)[None, None])
        if self.key_lengths is not None:
            parts.append(key < self.key_lengths.view(-1, 1, 1, 1))
        if self.mask is not None:
            parts.append(rows_of(self.mask, rows))
        if not parts:
            return None
        seen = parts[0]
        for part in parts[1:]:
            seen = seen & part
        return seen

    def positions(self) -> Int[Tensor, " Lq"]:
        """Where queries stand among all."""
        return torch.arange(self.num_queries, device=self.device)

    def mean(self, values: Tensor, valid: Bool[Tensor, "..."]) -> Float[Tensor, ""]:
        """The mean of the values that are valid; of shards, this rank's part of that sum."""
        return values.where(valid, 0).sum() / self.total(valid).clamp(min=1)

    def total(self, valid: Bool[Tensor, "..."]) -> Int[Tensor, ""]:
        """How many are valid, on all ranks."""
        return valid.sum()

    def counts(self, rows: slice | None = None) -> int | Int[Tensor, "#B #H #Lq 1"]:
        """How many keys a query of these rows (all) sees; a plain number where that is Lk."""
        rows = rows or slice(None)  # a default of slice(None) stops the compiler of torch 2.11
        if self.mask is not None:
            seen = self.matrix(rows)
            assert seen is not None
            return seen.expand(*seen.shape[:3], self.num_keys).sum(-1, keepdim=True)
        count: int | Tensor = self.num_keys
        if self.causal:
            position = torch.arange(self.num_queries, device=self.device)[rows]
            count = (position + 1 + self.num_keys - self.num_queries).clamp(min=0)
            count = count.view(1, 1, -1, 1)
        if self.key_lengths is not None:
            count = self.key_lengths.view(-1, 1, 1, 1).clamp(max=count)
        return count


def visibility_of(
    attend: Any,
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    key_lengths: Tensor | None,
    **counted: bool,
) -> Visibility:
    """That of a call of ``attend``, which knows it better where q and k are shards."""
    return getattr(_unwrapped(attend), "visibility_of", Visibility.of)(
        q, k, mask, causal, key_lengths, **counted
    )


def is_sharded(attend: Any) -> bool:
    """Whether a function computes attention over tokens of other ranks, too."""
    return hasattr(_unwrapped(attend), "visibility_of")


def refuse_shard_alone(attend: Any) -> None:
    """Refuse a layer without ``attend=`` where a context manager spreads sequences over ranks."""
    if is_sharded(current_attend()) and not is_sharded(attend):
        raise UnsupportedError(
            "inside `with attend:` tokens lie on several ranks, and this layer would see its "
            "rank's alone. Make it with attend=attend, or replace_attention's way."
        )


def _unwrapped(attend: Any) -> Any:
    """The function that ``functools.partial`` binds arguments of, however often."""
    while isinstance(attend, partial):
        attend = attend.func
    return attend


def rows_of(mask: Tensor, rows: slice) -> Tensor:
    """Some query rows of a mask that broadcasts to [B, H, Lq, Lk], its four axes written out."""
    mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    return mask if mask.shape[2] == 1 else mask[:, :, rows]


def check_key_lengths(
    key_lengths: Tensor, size: int, num_keys: int, device: torch.device, beside: str = "q"
) -> None:
    """One length for each of ``size`` samples, in range where that can be read."""
    check_index("key_lengths", key_lengths, size, device, beside)
    if is_readable(key_lengths):
        read_key_lengths(key_lengths, num_keys)


def merge_masks(
    mask: Tensor | None, attn_mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and the mask, where a layer takes either kind of mask."""
    if attn_mask is None:
        return None, mask
    if mask is not None:
        raise InputError("mask and attn_mask are both given. Pass one of them.")
    return read_attn_mask(attn_mask)


def read_attn_mask(attn_mask: Tensor) -> tuple[Tensor | None, Bool[Tensor, "..."]]:
    """What PyTorch's SDPA takes for a mask, as what is added to the scores and who may look.

    A bool mask adds nothing. Of a float one -inf hides a key, for any activation, and the key does
    not count in n_i; all other numbers are added.
    """
    check_tensor("attn_mask", attn_mask)
    if attn_mask.dtype == torch.bool:
        return None, attn_mask
    if not attn_mask.is_floating_point():
        dtype = str(attn_mask.dtype).removeprefix("torch.")
        raise InputError(f"attn_mask must be bool or floating. Got {dtype}.")
    hidden = attn_mask == -math.inf
    added = attn_mask.masked_fill(hidden, 0)
    if is_readable(added):
        check_finite("attn_mask", added)
    return added, ~hidden
