"""Keys and values that a layer has seen, so that decoding computes those of new tokens only."""

import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.layers.visibility import check_key_lengths
from flashpoint.ops.check import check_index, is_readable
from flashpoint.shapes import Float, Int


class KeyValueCache:
    """The keys and values of one attention layer, for inference.

    A self-attention layer appends to it: any number of tokens at once, each behind its sample's
    last, so that a long prompt can come in chunks. Their number may differ between samples. A
    cross-attention layer writes the keys and values of its context once.

    Buffers are made ahead and doubled when they are full.

    Attributes:
        num_tokens: of the longest sample, or more if calls padded all of them.
        lengths: tokens of every sample, [B].
        is_even: whether all samples are known to have ``num_tokens``.

    Example:
        >>> from flashpoint.layers.attention import Attention
        >>> layer, cache, x = Attention(64, 4), KeyValueCache(), torch.randn(2, 10, 64)
        >>> with torch.no_grad():  # a prompt in two chunks, then token by token
        ...     parts = x.split([4, 3, 1, 1, 1], dim=1)
        ...     parts = [layer(part, causal=True, cache=cache) for part in parts]
        ...     torch.cat(parts, dim=1).allclose(layer(x, causal=True), atol=1e-5)
        True
    """

    lengths: Int[Tensor, " B"]

    def __init__(self, capacity: int = 64) -> None:
        if capacity < 1:
            raise InputError(f"capacity={capacity} must be at least 1.")
        self.capacity = capacity
        self.num_tokens = 0
        self.is_even = True
        self._buffers: tuple[Tensor, Tensor] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written yet."""
        return self._buffers is None

    def write(
        self,
        k: Float[Tensor, "B H L D"],
        v: Float[Tensor, "B H L D"],
        lengths: Int[Tensor, " B"] | None = None,
        *,
        can_grow: bool = True,
    ) -> None:
        """The first keys and values; ``lengths`` says how many of every sample's exist."""
        _check_lengths(k, lengths)  # a call that fails leaves nothing behind
        self.num_tokens, self.is_even = k.shape[2], lengths is None
        full = k.new_full((len(k),), k.shape[2], dtype=torch.int64)
        self.lengths = full if lengths is None else lengths.to(torch.int64, copy=True)
        if can_grow:
            while self.capacity < self.num_tokens:
                self.capacity *= 2
            self._buffers = self._enlarge(k), self._enlarge(v)
        else:
            self._buffers = k, v

    def next_places(self, count: int) -> Int[Tensor, "B L"]:
        """Where the next tokens of every sample will stand."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def append(
        self,
        k: Float[Tensor, "B H L D"],
        v: Float[Tensor, "B H L D"],
        lengths: Int[Tensor, " B"] | None = None,
    ) -> None:
        """More keys and values; ``lengths`` says how many of every sample's new ones exist."""
        assert self._buffers is not None
        count = k.shape[2]
        self._check_new(k, lengths)
        self._reserve(self.num_tokens + count)
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            if self.is_even:
                buffer[:, :, self.num_tokens : self.num_tokens + count] = new
            else:  # what lies behind a sample's last token is overwritten by its next ones
                at = self.next_places(count)[:, None, :, None].expand_as(new)
                buffer.scatter_(2, at, new.to(buffer.dtype))
        self.num_tokens += count
        self.is_even = self.is_even and lengths is None
        self.lengths += count if lengths is None else lengths.to(self.lengths)

    def _check_new(self, k: Tensor, lengths: Tensor | None) -> None:
        """Tokens of every sample that the cache has, and as many as it is said they are."""
        samples, count = len(self.lengths), k.shape[2]
        if len(k) != samples:
            raise InputError(
                f"{count} tokens of {len(k)} samples were given to a cache of {samples} samples. "
                "Give tokens of each; key_lengths says how many, from none to all."
            )
        _check_lengths(k, lengths)

    def _reserve(self, num_tokens: int) -> None:
        """Buffers for as many tokens at least."""
        if num_tokens <= self.capacity:
            return
        while self.capacity < num_tokens:
            self.capacity *= 2
        k, v = self.whole()
        self._buffers = self._enlarge(k), self._enlarge(v)

    def whole(self) -> tuple[Float[Tensor, "B H C D"], Float[Tensor, "B H C D"]]:
        """The buffers, whose shape seldom changes: what lies behind ``lengths`` is no key."""
        assert self._buffers is not None
        return self._buffers

    def held(self) -> tuple[Float[Tensor, "B H L D"], Float[Tensor, "B H L D"]]:
        """The part of the buffers that holds ``num_tokens``."""
        k, v = self.whole()
        return k[:, :, : self.num_tokens], v[:, :, : self.num_tokens]

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Continue with these samples in this order, as beam search does."""
        if self.is_empty:
            return
        k, v = self.whole()
        count = rows.shape[0] if isinstance(rows, Tensor) and rows.dim() else 1
        check_index("rows", rows, count, k.device, "the cache")
        if is_readable(rows) and rows.numel() and not 0 <= rows.min() <= rows.max() < len(k):
            raise InputError(
                f"rows are from {rows.min()} to {rows.max()}; the cache has samples 0 to "
                f"{len(k) - 1}."
            )
        self._buffers = k.index_select(0, rows), v.index_select(0, rows)
        self.lengths = self.lengths[rows]

    def _enlarge(self, part: Float[Tensor, "B H L D"]) -> Float[Tensor, "B H C D"]:
        """The same at the start of a buffer of the capacity, with zeros behind it."""
        buffer = part.new_zeros(*part.shape[:2], self.capacity, part.shape[3])
        buffer[:, :, : part.shape[2]] = part
        return buffer


def _check_lengths(k: Float[Tensor, "B H L D"], lengths: Tensor | None) -> None:
    """As many as there are samples, each from none to all of the tokens."""
    if lengths is not None:
        check_key_lengths(lengths, len(k), k.shape[2], k.device, "x")
