"""ReLUFormer: a translation model of ReLU alone (arXiv 2302.06461), and its softmax twin.

Shapes: B batch, Ls source tokens, Lt target tokens, E width, V vocabulary.

    source [B, Ls] -> embed + sines -> encoder blocks (attention, memory)        -> [B, Ls, E]
    target [B, Lt] -> embed + sines -> decoder blocks (causal, cross, memory) -> logits [B, Lt, V]

Attention everywhere is relu(q . k / sqrt(d)) / (gamma sqrt(n / 2)) over the n keys that a query
sees: alpha 0.5 and gain sqrt(2) / gamma. With ``attention="softmax"`` the same model is the
vanilla transformer.

Start: kernels xavier uniform, q, k and v as matrices of their own, so that scores and values of
normalised tokens have variance 1, as the paper's lemma wants it; biases zero; embeddings normal
with variance 1 / E, which is 1 after their factor sqrt(E), and gives logits of variance 1 where
the same matrix reads them out. (The lemma also wants scores and values that are independent. Those
of the same tokens are not, which adds n / (2 E) to the variance of 1. And it wants values of mean
zero. What all tokens share, as the slow sines, is multiplied by the row's sum, sqrt(n / pi):
over 512 tokens of text the branches start at 4 to 17 instead of 1.)

Dropout acts on embeddings and on every branch before it is added. The fused operator has no
weights to drop, so that attention has none of its own, in either twin.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.bounds import Bounds, Depth, Slots, Width, check_bounds
from flashpoint.errors import InputError, check_choice
from flashpoint.layers.attention import Attention
from flashpoint.layers.cache import KeyValueCache
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.layers.spec import SOFTMAX, AnySpec, AttentionSpec
from flashpoint.models.penalty import RowMeans, attend_and_measure, penalise, r_log_r
from flashpoint.ops.check import check_flag
from flashpoint.ops.spec import known_activations
from flashpoint.shapes import Float, Int

RELU_ATTENTION = AttentionSpec(
    activation="relu", alpha=0.5, gain="learned", gain_start=math.sqrt(2.0)
)
"""The paper's, with gamma = sqrt(2) / gain learned from 1."""

LONGEST_WAVE = 10_000.0
_FLAGS = ("pre_norm", "tied_embeddings", "memory_norm")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReLUFormerConfig:
    """An encoder-decoder; ``flashpoint.create_model`` fills in the usual sizes.

    Attributes:
        vocabulary_size: V, pieces of source and target together.
        width, encoder_depth, decoder_depth, num_heads: E, blocks, and heads of every attention.
        mlp_dim: slots of every memory: units inside a feed-forward layer.
        attention: the mathematics of all attention: self, causal and cross. One that is given in
            parts, as by ``--set model.attention.gain=...``, has the defaults of ``AttentionSpec``
            (alpha 1) for the rest, not these.
        memory_activation, memory_norm: see ``KeyValueMemory``; "softmax" and True are the paper's
            equivalent of relu.
        pre_norm: x + f(norm(x)); False is norm(x + f(x)).
        tied_embeddings: one matrix embeds source and target and reads out logits; False: three.
        dropout: share of the embeddings and of the branches' outputs that training drops.
    """

    vocabulary_size: Annotated[int, Bounds(1, 10_000_000)] = 32_000
    width: Width
    encoder_depth: Depth
    decoder_depth: Depth
    num_heads: Width
    mlp_dim: Slots
    attention: AttentionSpec = RELU_ATTENTION
    memory_activation: str = "relu"
    memory_norm: bool = False
    pre_norm: bool = True
    tied_embeddings: bool = True
    dropout: Annotated[float, Bounds(0.0, 1.0, below=True)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        check_choice("memory_activation", self.memory_activation, (*known_activations(), SOFTMAX))
        object.__setattr__(self, "attention", text_attention(self.attention))
        if self.width % self.num_heads or self.width % 2:
            raise InputError(
                f"width={self.width} must be even and a multiple of {self.num_heads} heads."
            )


def text_attention(value: AnySpec) -> AttentionSpec:
    """As ``AttentionSpec.parse``, but the word "relu" is ReLUFormer's own.

    Example:
        >>> text_attention("relu").alpha, text_attention({"activation": "relu"}).alpha
        (0.5, 1.0)
    """
    return RELU_ATTENTION if value == "relu" else AttentionSpec.parse(value)


def sines(positions: Int[Tensor, " L"], width: int) -> Float[Tensor, "L E"]:
    """Positions as sines, then cosines, of wavelengths from 2 pi to 10,000 times that.

    Example:
        >>> sines(torch.arange(7), 64).shape
        torch.Size([7, 64])
    """
    steps = torch.arange(width // 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * torch.exp(steps * (-2 * math.log(LONGEST_WAVE) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Block(nn.Module):
    """Attention, cross-attention in a decoder, and a memory, each a residual branch."""

    def __init__(self, config: ReLUFormerConfig, *, is_decoder: bool) -> None:
        super().__init__()
        width, heads, spec = config.width, config.num_heads, config.attention
        self.is_pre_norm, self.is_decoder = config.pre_norm, is_decoder
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, spec)
        if is_decoder:
            self.norm2 = nn.LayerNorm(width)
            self.cross = Attention(width, heads, spec, context_dim=width)
        self.norm3 = nn.LayerNorm(width)
        self.memory = KeyValueMemory(
            width, config.mlp_dim, config.memory_activation, output_norm=config.memory_norm
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "B L E"],
        encoded: Float[Tensor, "B Ls E"] | None = None,
        *,
        lengths: Int[Tensor, " B"] | None = None,
        source_lengths: Int[Tensor, " B"] | None = None,
        with_penalty: bool = False,
    ) -> tuple[Float[Tensor, "B L E"], list[RowMeans]]:
        """Tokens, and what the penalty needs of each attention if asked for.

        Args:
            x: the tokens; a decoder's see none behind them.
            encoded: the source, for a decoder.
            lengths, source_lengths: how many tokens of x and of the source exist.
            with_penalty: whether there is to be a penalty.
        """
        # Causality already hides a target's padding from what lies before it.
        keys = None if self.is_decoder else lengths
        sight = Sight(self.is_decoder, keys, with_penalty)
        x, rows = self._attend(self.norm1, self.attn, x, None, sight)
        if self.is_decoder:
            sight = Sight(False, source_lengths, with_penalty)
            x, more = self._attend(self.norm2, self.cross, x, encoded, sight)
            rows = rows + more
        return self._add(self.norm3, x, self.memory(self._read(self.norm3, x))), rows

    def step(
        self,
        x: Float[Tensor, "N 1 E"],
        encoded: Float[Tensor, "B Ls E"],
        source_lengths: Int[Tensor, " B"] | None,
        caches: "BlockCaches",
    ) -> Float[Tensor, "N 1 E"]:
        """A decoder's forward for one new token of each of N / B hypotheses a source."""
        read = self._read(self.norm1, x)
        x = self._add(self.norm1, x, self.attn(read, causal=True, cache=caches.own))
        # Hypotheses are queries of one source, whose keys and values exist once.
        x = x.reshape(len(encoded), -1, x.shape[2])  # [B, N / B, E]
        read = self._read(self.norm2, x)
        seen = self.cross(read, encoded, key_lengths=source_lengths, cache=caches.source)
        x = self._add(self.norm2, x, seen).reshape(-1, 1, x.shape[2])  # [N, 1, E]
        return self._add(self.norm3, x, self.memory(self._read(self.norm3, x)))

    def _attend(
        self, norm: nn.Module, layer: Attention, x: Tensor, context: Tensor | None, sight: "Sight"
    ) -> tuple[Tensor, list[RowMeans]]:
        read = self._read(norm, x)
        causal, key_lengths, is_penalised = sight
        if not is_penalised:
            y = layer(read, context, causal=causal, key_lengths=key_lengths)
            return self._add(norm, x, y), []
        y, rows = attend_and_measure(layer, read, context, causal=causal, key_lengths=key_lengths)
        return self._add(norm, x, y), [rows]

    def _read(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.is_pre_norm else x

    def _add(self, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x if self.is_pre_norm else norm(x)


class Sight(NamedTuple):
    """Who sees whom in one attention, and whether that is penalised."""

    causal: bool
    key_lengths: Tensor | None
    is_penalised: bool


class BlockCaches(NamedTuple):
    """What a decoder's block remembers: its own tokens, and the source."""

    own: KeyValueCache
    source: KeyValueCache


class DecodingState:
    """How far decoding has come: N hypotheses, the same number of each of B sources.

    Attributes:
        encoded, source_lengths: the sources.
        caches: of every block of the decoder.
        num_tokens: decoded so far.
    """

    def __init__(
        self,
        encoded: Float[Tensor, "B Ls E"],
        source_lengths: Int[Tensor, " B"] | None,
        num_blocks: int,
    ) -> None:
        self.encoded, self.source_lengths = encoded, source_lengths
        self.caches = [BlockCaches(KeyValueCache(), KeyValueCache()) for _ in range(num_blocks)]
        self.num_tokens = 0

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Continue with these hypotheses; each must be one of the same source."""
        for caches in self.caches:
            caches.own.select(rows)


class ReLUFormer(nn.Module):
    """An encoder-decoder for translation, of relu attention or softmax.

    Example:
        >>> config = ReLUFormerConfig(vocabulary_size=100, width=32, encoder_depth=2,
        ...                           decoder_depth=2, num_heads=4, mlp_dim=64)
        >>> source, target = torch.randint(100, (2, 9)), torch.randint(100, (2, 7))
        >>> ReLUFormer(config)(source, target, source_lengths=torch.tensor([9, 5])).shape
        torch.Size([2, 7, 100])
    """

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__()
        self.config = config
        size, width = config.vocabulary_size, config.width
        self.embed = nn.Embedding(size, width)
        self.target_embed = None if config.tied_embeddings else nn.Embedding(size, width)
        self.head = None if config.tied_embeddings else nn.Linear(width, size, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder, self.decoder = (
            nn.ModuleList(Block(config, is_decoder=is_decoder) for _ in range(depth))
            for depth, is_decoder in ((config.encoder_depth, False), (config.decoder_depth, True))
        )
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(width) if config.pre_norm else nn.Identity() for _ in range(2)
        )
        if config.attention.activation == "relu":
            r_log_r()  # it must exist before anything is compiled
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew, as this file's head says."""
        std = self.config.width**-0.5
        for module in self.modules():
            if isinstance(module, (Attention, KeyValueMemory, nn.LayerNorm)):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=std)

    def forward(
        self,
        source: Int[Tensor, "B Ls"],
        target: Int[Tensor, "B Lt"],
        *,
        source_lengths: Int[Tensor, " B"] | None = None,
        target_lengths: Int[Tensor, " B"] | None = None,
        with_penalty: bool = False,
    ) -> Float[Tensor, "B Lt V"] | tuple[Float[Tensor, "B Lt V"], Float[Tensor, ""]]:
        """Logits of the next token at every position of the target.

        What lies behind a length is padding, of any value: no result before it depends on it.

        Args:
            source: tokens to translate.
            target: tokens translated so far, from the one that begins a sentence.
            source_lengths, target_lengths: how many exist; None: all.
            with_penalty: also return the mean penalty over all attention, see ``penalty.py``, in
                fp32. Its weight is the caller's. softmax has none: 0.
        """
        penalised = with_penalty and self.config.attention.activation != SOFTMAX
        encoded, of_encoder = self._encode(source, source_lengths, penalised)
        x = self._embed(target, self.target_embed)
        of_decoder: list[list[RowMeans]] = []
        for block in self.decoder:
            x, more = block(
                x,
                encoded,
                lengths=target_lengths,
                source_lengths=source_lengths,
                with_penalty=penalised,
            )
            of_decoder.append(more)
        logits = self._read_out(x)
        if not with_penalty:
            return logits
        if not penalised:
            return logits, logits.new_zeros((), dtype=torch.float32)
        own, cross = zip(*of_decoder, strict=True)
        kinds = ((of_encoder, source_lengths), (own, target_lengths), (cross, target_lengths))
        return logits, self._mean_penalty(kinds)

    def _mean_penalty(
        self, kinds: Iterable[tuple[Sequence[RowMeans], Tensor | None]]
    ) -> Float[Tensor, ""]:
        """Over all attention, from that of each kind and the lengths of its queries."""
        block = self.encoder[0]
        assert isinstance(block, Block)
        sums = [len(rows) * penalise(block.attn, rows, lengths) for rows, lengths in kinds]
        return torch.stack(sums).sum() / (len(self.encoder) + 2 * len(self.decoder))

    def encode(
        self, source: Int[Tensor, "B Ls"], source_lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B Ls E"]:
        """What cross-attention reads."""
        return self._encode(source, source_lengths, with_penalty=False)[0]

    def _encode(
        self, source: Tensor, lengths: Tensor | None, with_penalty: bool
    ) -> tuple[Tensor, list[RowMeans]]:
        x = self._embed(source, None)
        rows: list[RowMeans] = []
        for block in self.encoder:
            x, more = block(x, lengths=lengths, with_penalty=with_penalty)
            rows = rows + more
        return self.encoder_norm(x), rows

    def start_decoding(
        self, source: Int[Tensor, "B Ls"], source_lengths: Int[Tensor, " B"] | None = None
    ) -> DecodingState:
        """Encode the sources; the state is what ``decode_step`` takes."""
        encoded = self.encode(source, source_lengths)
        return DecodingState(encoded, source_lengths, len(self.decoder))

    def decode_step(self, tokens: Int[Tensor, " N"], state: DecodingState) -> Float[Tensor, "N V"]:
        """Logits of the next token, from the last one of each hypothesis; for inference.

        Hypotheses of a source follow one another; every source has the same number of them.
        The state remembers all tokens given so far.
        """
        if len(tokens) % max(len(state.encoded), 1):
            raise InputError(
                f"{len(tokens)} hypotheses of {len(state.encoded)} sources: every source must "
                "have the same number of them."
            )
        x = self._embed(tokens[:, None], self.target_embed, first=state.num_tokens)  # [N, 1, E]
        for block, caches in zip(self.decoder, state.caches, strict=True):
            assert isinstance(block, Block)
            x = block.step(x, state.encoded, state.source_lengths, caches)
        state.num_tokens += 1
        return self._read_out(x)[:, 0]

    def _embed(
        self, tokens: Int[Tensor, "B L"], embed: nn.Embedding | None, first: int = 0
    ) -> Float[Tensor, "B L E"]:
        """Tokens from position ``first`` on, as vectors."""
        if tokens.dim() != 2:
            raise InputError(f"tokens have shape {list(tokens.shape)}, expected [B, L].")
        width = self.config.width
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        x = (self.embed if embed is None else embed)(tokens) * math.sqrt(width)
        return self.dropout(x + sines(positions, width).to(x.dtype))

    def _read_out(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L V"]:
        x = self.decoder_norm(x)
        return F.linear(x, self.embed.weight) if self.head is None else self.head(x)
