"""Keys and values that a layer has seen, so that decoding computes those of new tokens only."""

import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.shapes import Float, Int


class KeyValueCache:
    """The keys and values of one attention layer, for inference.

    A self-attention layer appends to it: first any number of tokens at once, which may differ in
    number between samples, then one token of every sample at a time, each behind its sample's
    last. A cross-attention layer writes the keys and values of its context once.

    Buffers are made ahead and doubled when they are full.

    Attributes:
        num_tokens: of the longest sample, or more if the first call padded all of them.
        lengths: tokens of every sample, [B].
        is_even: whether all samples are known to have ``num_tokens``.

    Example:
        >>> from flashpoint.layers.attention import Attention
        >>> layer, cache, x = Attention(64, 4), KeyValueCache(), torch.randn(2, 10, 64)
        >>> with torch.no_grad():
        ...     steps = [layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(10)]
        ...     torch.cat(steps, dim=1).allclose(layer(x, causal=True), atol=1e-5)
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
        self.num_tokens, self.is_even = k.shape[2], lengths is None
        full = k.new_full((len(k),), k.shape[2], dtype=torch.int64)
        self.lengths = full if lengths is None else lengths.to(torch.int64, copy=True)
        if can_grow:
            while self.capacity < self.num_tokens:
                self.capacity *= 2
            self._buffers = self._enlarge(k), self._enlarge(v)
        else:
            self._buffers = k, v

    def append(self, k: Float[Tensor, "B H 1 D"], v: Float[Tensor, "B H 1 D"]) -> None:
        """One more key and value of every sample."""
        assert self._buffers is not None
        if k.shape[2] != 1 or len(k) != len(self.lengths):
            raise InputError(
                f"{k.shape[2]} tokens of {len(k)} samples were given to a cache of "
                f"{len(self.lengths)} samples. After the first call, give one token of each."
            )
        if self.num_tokens == self.capacity:
            self.capacity *= 2
            self._buffers = self._enlarge(self._buffers[0]), self._enlarge(self._buffers[1])
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            if self.is_even:
                buffer[:, :, self.num_tokens] = new[:, :, 0]
            else:
                at = self.lengths.view(-1, 1, 1, 1).expand_as(new)
                buffer.scatter_(2, at, new.to(buffer.dtype))
        self.num_tokens += 1
        self.lengths += 1

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
        self._buffers = k.index_select(0, rows), v.index_select(0, rows)
        self.lengths = self.lengths[rows]

    def _enlarge(self, part: Float[Tensor, "B H L D"]) -> Float[Tensor, "B H C D"]:
        """The same at the start of a buffer of the capacity, with zeros behind it."""
        buffer = part.new_zeros(*part.shape[:2], self.capacity, part.shape[3])
        buffer[:, :, : part.shape[2]] = part
        return buffer
